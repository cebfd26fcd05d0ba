#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace kv {

// The binary as a user runs it.
class Cli : public RunFixture {
 protected:
  struct Output {
    int code = 0;
    std::string text;  // stdout and stderr
  };

  static Output run(const std::string& arguments, const char* environment = "") {
    const std::string command =
        fmt::format("export OMP_NUM_THREADS=1; {} '{}' {} 2>&1", environment, ref::binary_path(), arguments);
    FILE* pipe = popen(command.c_str(), "r");
    Output output;
    std::array<char, 4096> buffer;
    while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe)) output.text.append(buffer.data(), size);
    const int status = pclose(pipe);
    output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return output;
  }

  std::string model() const { return ref::source_path("tests/data/llama"); }
  std::string reference() const { return ref::source_path("experiments/models/reference"); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  // What it says: one line with the reason in it, and code 2.
  static std::string expect_refused(const std::string& arguments, const std::string& reason = "",
                                    const char* environment = "") {
    const Output output = run(arguments, environment);
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
    EXPECT_THAT(output.text, testing::MatchesRegex("kvlab( [a-z]+)?: [^\n]+\n")) << arguments;
    EXPECT_NE(output.text.find(reason), std::string::npos) << output.text;
    return output.text;
  }
  // The tiny spec with a plot.
  std::string plotted() const {
    write_atomically(folder_ / "plotted.yaml",
                     yaml() + "plots: [{name: losses, kind: bars, metric: nll_sum, x: budget, series: [policy]}]\n");
    return path("plotted.yaml");
  }
};

}  // namespace kv
