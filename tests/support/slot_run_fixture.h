#pragma once

#include <map>
#include <string>

#include "tests/support/run_fixture.h"

namespace kv {

// The tiny Llama under policies with a slot filled, from a spec to rows, or to a refusal.
class SlotRun : public RunFixture {
 protected:
  explicit SlotRun(int budget) : budget_(budget) {}

  std::string with(const std::string& policies, const std::string& metrics = "loss, cache_size, recall") const {
    std::string yaml = test::replaced(RunFixture::yaml(), "[full, streaming, h2o, random]", policies);
    yaml = test::replaced(yaml, "{budget: [16, 24]", "{budget: " + std::to_string(budget_));
    return test::replaced(yaml, "[loss]", "[" + metrics + "]");
  }
  Spec spec_of(const std::string& yaml) const {
    write_atomically(spec_file(), yaml);
    return load_spec(spec_file());
  }
  // Of sample 0: metrics of each policy as a whole.
  std::map<std::string, std::map<std::string, double>> run(const std::string& yaml, const std::string& out) const {
    const RunSummary summary = run_experiment(spec_of(yaml), options(out));
    EXPECT_EQ(summary.failed, 0);
    std::map<std::string, std::map<std::string, double>> values;
    for (const Row& row : read_rows(folder_ / out / "rows.csv").rows) {
      if (row.value && row.sample == 0 && !row.layer && !row.x) values[row.policy][row.metric] = *row.value;
    }
    return values;
  }
  // Without the file's name, which begins it.
  std::string refusal(const std::string& yaml) const {
    const std::string message = test::user_error([&] { run_experiment(spec_of(yaml), options("refused")); });
    return message.starts_with(spec_file().string()) ? message.substr(spec_file().string().size()) : message;
  }

 private:
  int budget_;
};

}  // namespace kv
