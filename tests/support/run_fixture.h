#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/files.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/run.h"
#include "harness/spec/spec_reader.h"
#include "sim/io/safetensors.h"
#include "sim/tasks/random.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {

// A folder of its own for each test, with token ids for the tiny Llama of tests/data (vocabulary 1024) and a spec.
class RunFixture : public testing::Test {
 protected:
  RunFixture() {
    Random random(3);
    std::vector<int32_t> ids(kTokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(1024));
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {kTokens}, .data = ids.data()}};
    write_safetensors(folder_ / "ids.safetensors", tensors);
    write_atomically(spec_file(), yaml());
  }

  static std::string yaml() {
    return "# Does it run?\nmodel: " + ref::source_path("tests/data/llama") +
           "\n"
           "data: [{name: noise, ids: ids.safetensors, tokens: 48}]\n"
           "policies: [full, streaming, h2o, random]\n"
           "axes: {budget: [16, 24], interval: 8}\n"
           "metrics: [loss]\n"
           "samples: 3\n"
           "seed: 5\n"
           "tables: []\n";  // else kvlab's own tables and plots, which these tests do not look at
  }

  std::filesystem::path spec_file() const { return folder_ / "tiny.yaml"; }
  Spec spec(const std::vector<std::string>& overrides = {}) const { return load_spec(spec_file(), overrides); }
  RunOptions options(const std::string& out) const {
    RunOptions options;
    options.out = folder_ / out;
    options.verbosity = Verbosity::kQuiet;
    return options;
  }

  // rows.csv without what depends on the clock.
  std::string rows_of(const std::string& out) const {
    RowTable table = read_rows(folder_ / out / "rows.csv");
    std::erase_if(table.rows, [](const Row& row) { return is_timing(row.metric); });
    return format_rows(table.axes, table.rows);
  }

  static constexpr int kTokens = 150;  // three samples of 48, and no fourth
  test::TempFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

}  // namespace kv
