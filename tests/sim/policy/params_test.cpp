#include "sim/policy/params.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/error.h"

namespace kv {
namespace {

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Params, AbsentKeysTakeTheDefaultAndAreDeclared) {
  Params params("h2o");
  EXPECT_EQ(params.get("recent", 32, "newest entries kept"), 32);
  EXPECT_EQ(params.get("mode", "block", {"block", "original"}, "form"), "block");
  params.finish();
  ASSERT_EQ(params.declared().size(), 2u);
  EXPECT_EQ(params.declared()[0].key, "recent");
  EXPECT_EQ(params.declared()[0].fallback, "32");
  EXPECT_EQ(params.declared()[1].type, "block | original");
}

TEST(Params, GivenKeysWin) {
  Params params("r-kv", {{"lambda", "0.07", ""}, {"window", "16", ""}});
  EXPECT_EQ(params.get("lambda", 0.1, "weight of attention"), 0.07);
  EXPECT_EQ(params.get("window", 8, "observation window"), 16);
  params.finish();
}

TEST(Params, MisspeltKeyNamesPlaceOwnerAndKnownKeys) {
  Params params("h2o", {{"recnet", "3", "x.yaml:4:7"}});
  params.get("recent", 32, "newest entries kept");
  params.get("mode", "block", {"block", "original"}, "form");
  EXPECT_EQ(message([&] { params.finish(); }),
            "x.yaml:4:7: h2o: recnet = 3: unknown option, did you mean 'recent'? (expected one of: recent, mode)");
}

TEST(Params, IllTypedValuesAreRefused) {
  Params params("h2o", {{"recent", "3.5", ""}, {"decay", "nan", ""}, {"mode", "bloc", ""}});
  EXPECT_EQ(message([&] { params.get("recent", 1, ""); }), "h2o: recent = 3.5: expected an integer");
  EXPECT_EQ(message([&] { params.get("decay", 1.0, ""); }), "h2o: decay = nan: expected a finite number");
  EXPECT_EQ(message([&] {
              params.get("mode", "block", {"block", "original"}, "");
            }),
            "h2o: mode = bloc: expected block | original");
}

}  // namespace
}  // namespace kv
