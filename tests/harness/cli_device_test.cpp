#include "kernels/backend.h"
#include "kernels/error.h"
#include "tests/harness/cli_fixture.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

class CliDevice : public Cli {
 protected:
  // A build with the CUDA backend names it among those that it has.
  static bool has_cuda() {
    try {
      make_backend("none");
    } catch (const UserError& error) {
      return std::string(error.what()).find("cuda") != std::string::npos;
    }
    return false;
  }

  // On a machine without a GPU, or as on one.
  static void expect_no_cuda(const std::string& arguments) {
    const std::string reason = has_cuda() ? "driver for CUDA " : "is not in this build (expected one of: cpu)";
    const Output output = run(arguments, "export CUDA_VISIBLE_DEVICES=;");
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
    EXPECT_TRUE(output.text.starts_with("kvlab: device 'cuda'")) << output.text;
    EXPECT_NE(output.text.find(reason), std::string::npos) << output.text;
  }
};

TEST_F(CliDevice, CudaWithoutAGpuIsOneLineAndCodeTwo) {
  const std::string inputs =
      " --device cuda --model " + model() + " --ids " + path("ids.safetensors") + " --out " + path("x");
  expect_no_cuda("score" + inputs);
  expect_no_cuda("compress --policy keydiff --keep 0.5" + inputs);
  expect_no_cuda("record" + inputs);
  expect_no_cuda("generate --device cuda --max-new-tokens 2 --prompt a --model " + reference());
  expect_no_cuda("run --quiet --set device=cuda --out " + path("x") + " " + path("tiny.yaml"));
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(CliDevice, CudaWithoutAGpuLeavesEarlierResultsAsTheyWere) {
  const std::string command = "run --quiet --out " + path("a") + " " + path("tiny.yaml");
  ASSERT_EQ(run(command).code, 0);
  const std::string rows = read_file(folder_ / "a" / "rows.csv"), manifest = read_file(folder_ / "a" / "manifest.json");
  expect_no_cuda(command + " --set device=cuda");
  EXPECT_EQ(read_file(folder_ / "a" / "rows.csv"), rows);
  EXPECT_EQ(read_file(folder_ / "a" / "manifest.json"), manifest);
}

TEST_F(CliDevice, AnUnknownDeviceNamesTheKnownOnes) {
  expect_refused("score --device gpu --model " + model() + " --ids " + path("ids.safetensors") + " --out " + path("x"),
                 "device 'gpu' is not in this build (expected one of: cpu");
}

}  // namespace
}  // namespace kv
