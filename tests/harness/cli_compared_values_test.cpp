// Tables that compare with a value which no case has are refused before anything runs.

#include <string>
#include <vector>

#include "harness/cli/compared_values.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

constexpr const char* kSpec =
    "model: m\n"
    "data: [{name: prose, task: book, tokens: 512}]\n"
    "protocol: one-shot\n"
    "policies: [{policy: full, label: all}, snapkv]\n"
    "axes: {keep: [0.10, 0.5], allocation: [uniform, lu-kv, global]}\n"
    "tables:\n";

std::string table(const std::string& paired) {
  return kSpec +
         ("  - {name: t, metric: loss, rows: [data, policy, allocation, keep, layer], paired: " + paired + "}\n");
}

std::string error_of(const std::string& paired, const std::vector<std::string>& overrides = {}) {
  return test::user_error([&] { check_compared_values(parse_spec(table(paired), "s.yaml", overrides)); });
}

TEST(ComparedValues, AreThoseOfTheSpec) {
  for (const char* paired : {"{column: policy, with: all}", "{column: data, with: prose}", "{column: keep, with: 0.1}",
                             "{column: allocation, with: global, beside: {column: policy, with: snapkv}}"}) {
    EXPECT_NO_THROW(check_compared_values(parse_spec(table(paired), "s.yaml"))) << paired;
  }
  EXPECT_EQ(error_of("{column: allocation, with: lukv}"),
            "s.yaml:7:111: table 't': paired: with = lukv: expected one of the values of 'allocation', did you mean "
            "'lu-kv'? (uniform, lu-kv, global)");
  EXPECT_EQ(error_of("{column: keep, with: 0.5, beside: {column: policy, with: full}}"),
            "s.yaml:7:141: table 't': paired: beside: with = full: expected one of the values of 'policy' (all, "
            "snapkv)");
}

// Layers are the model's.
TEST(ComparedValues, OfAColumnThatTheSpecDoesNotNameMayBeAny) {
  EXPECT_NO_THROW(check_compared_values(parse_spec(table("{column: layer, with: 7}"), "s.yaml")));
}

// A shorter run of the same spec: its note says that nothing can be compared.
TEST(ComparedValues, MayBeLeftOutByAnOverride) {
  EXPECT_NO_THROW(check_compared_values(parse_spec(table("{column: allocation, with: uniform}"), "s.yaml",
                                                   std::vector<std::string>{"axes.allocation=global"})));
}

TEST_F(Cli, RefusesToCompareWithAValueThatIsNotThere) {
  write_atomically(folder_ / "compared.yaml",
                   table("{column: keep, with: 0.5, beside: {column: allocation, with: even}}"));
  expect_refused(
      "validate " + path("compared.yaml"),
      "table 't': paired: beside: with = even: expected one of the values of 'allocation' (uniform, lu-kv, global)");
}

}  // namespace
}  // namespace kv
