#include "harness/unit_key.h"

#include <functional>
#include <map>

#include "harness/protocols/protocol.h"
#include "harness/spec/grid.h"
#include "tests/support/run_fixture.h"

namespace kv {
namespace {

// One unit of the fixture's spec, of which a test changes one thing at a time.
struct Unit {
  Spec spec;
  Grid grid;
  int first = 0, count = 1;
  std::string inputs = "i";

  Case& unit_case() { return grid.workloads[0].cases[2]; }  // h2o
};

class UnitKey : public RunFixture {
 protected:
  using Change = std::function<void(Unit&)>;

  std::string key(const Change& change = [](Unit&) {}) {
    Unit unit{spec({"metrics=[loss, {metric: recall, block: 8}]", "model=" + model_}), {}};
    unit.grid = make_grid(unit.spec);
    const auto subject = open_subject(*backend_, unit.spec, 0, unit.grid.models.front());
    change(unit);
    return unit_key({.backend = *backend_,
                     .spec = unit.spec,
                     .subject = *subject,
                     .needs = unit.grid.needs,
                     .workload = unit.grid.workloads[0],
                     .first = unit.first,
                     .count = unit.count},
                    unit.unit_case(), unit.inputs);
  }

  std::string model_ = ref::source_path("tests/data/llama");
  const std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

// Texts are decoded and graded with it, and the weights' fingerprint does not know it.
TEST_F(UnitKey, ChangesWithTheTokenizer) {
  std::filesystem::copy(ref::source_path("tests/data/llama"), folder_ / "copy");
  const auto key_with = [&](const char* tokenizer) {
    write_atomically(folder_ / "copy" / "tokenizer.json", tokenizer);
    model_ = (folder_ / "copy").string();
    return key();
  };
  const std::string first = key_with("{}");
  EXPECT_NE(key_with("{ }"), first);
  EXPECT_EQ(key_with("{}"), first);
}

TEST_F(UnitKey, ChangesWithEverythingThatRowsDependOn) {
  const std::map<std::string, Change> changes = {
      {"experiment", [](Unit& u) { u.spec.name = "other"; }},
      {"protocol", [](Unit& u) { u.spec.protocol = find_protocol("one-shot"); }},
      {"protocol options",
       [](Unit& u) {
         u.spec.protocol_options["sampling"] = {{"top_k", "1", ""}};
       }},
      {"metric", [](Unit& u) { u.spec.metrics.pop_back(); }},
      {"metric option", [](Unit& u) { u.spec.metrics.back().options[0].text = "16"; }},
      {"seed", [](Unit& u) { u.spec.seed = 6; }},
      {"device", [](Unit& u) { u.spec.device = "other"; }},
      {"chunk", [](Unit& u) { u.spec.prefill_chunk = 7; }},
      {"policy", [](Unit& u) { u.spec.policies[2].name = "keydiff"; }},
      {"label", [](Unit& u) { u.spec.policies[2].label = "other"; }},
      {"option",
       [](Unit& u) {
         u.unit_case().options.push_back({"queries", "4", ""});
       }},
      {"allocation", [](Unit& u) { u.unit_case().slots.allocation.name = "ada"; }},
      {"allocation option",
       [](Unit& u) {
         u.unit_case().slots.allocation.options.push_back({"a", "b", ""});
       }},
      {"admission", [](Unit& u) { u.unit_case().slots.admission.name = "local"; }},
      {"selection", [](Unit& u) { u.unit_case().slots.selection.name = "quest"; }},
      {"file",
       [](Unit& u) {
         u.unit_case().files.push_back({"p", "sha", "allocation"});
       }},
      {"axis", [](Unit& u) { u.unit_case().axes[0] = "17"; }},
      {"setting", [](Unit& u) { u.unit_case().settings[0].text = "17"; }},
      {"needs", [](Unit& u) { u.unit_case().needs.outputs = true; }},
      {"block", [](Unit& u) { u.grid.needs.statistics_block = 4; }},
      {"first", [](Unit& u) { u.first = 1; }},
      {"count", [](Unit& u) { u.count = 2; }},
      {"inputs", [](Unit& u) { u.inputs = "j"; }},
      {"tokens", [](Unit& u) { u.grid.workloads[0].tokens = 49; }},
  };
  std::map<std::string, std::string> known = {{key(), "nothing"}};
  for (const auto& [name, change] : changes) {
    const auto [found, fresh] = known.emplace(key(change), name);
    EXPECT_TRUE(fresh) << name << " gives the key of " << found->second;
  }
}

TEST_F(UnitKey, StaysWithWhatOnlyNamesExplainsOrDraws) {
  const std::map<std::string, Change> changes = {
      {"file", [](Unit& u) { u.spec.file = "elsewhere.yaml"; }},
      {"title", [](Unit& u) { u.spec.title = u.spec.question = "other"; }},
      {"report", [](Unit& u) { u.spec.report.tables.clear(); }},
      {"place", [](Unit& u) { u.unit_case().settings[0].where = "--set"; }},
      {"place of a slot", [](Unit& u) { u.unit_case().slots.allocation.where = "--set"; }},
      {"samples", [](Unit& u) { u.spec.samples = 9; }},
      {"other policies", [](Unit& u) { u.spec.policies.pop_back(); }},
      {"needs of others", [](Unit& u) { u.grid.needs.projections = true; }},
  };
  const std::string before = key();
  for (const auto& [name, change] : changes) EXPECT_EQ(key(change), before) << name;
}

}  // namespace
}  // namespace kv
