#include <nlohmann/json.hpp>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "tests/support/cli_fixture.h"

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
  expect_no_cuda("run --quiet --device cuda --out " + path("x") + " " + path("tiny.yaml"));
  expect_no_cuda("run --quiet --set device=cuda --out " + path("x") + " " + path("tiny.yaml"));
  expect_no_cuda("validate --device cuda " + path("tiny.yaml"));
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(CliDevice, CudaWithoutAGpuLeavesEarlierResultsAsTheyWere) {
  const std::string command = "run --quiet --out " + path("a") + " " + path("tiny.yaml");
  ASSERT_EQ(run(command).code, 0);
  const std::string rows = read_file(folder_ / "a" / "rows.csv"), manifest = read_file(folder_ / "a" / "manifest.json");
  expect_no_cuda(command + " --device cuda");
  EXPECT_EQ(read_file(folder_ / "a" / "rows.csv"), rows);
  EXPECT_EQ(read_file(folder_ / "a" / "manifest.json"), manifest);
}

TEST_F(CliDevice, AnUnknownDeviceNamesTheKnownOnes) {
  expect_refused("score --device gpu --model " + model() + " --ids " + path("ids.safetensors") + " --out " + path("x"),
                 "device 'gpu' is not in this build (expected one of: cpu");
  expect_refused("run --device gpu --out " + path("x") + " " + path("tiny.yaml"),
                 "device 'gpu' is not in this build (expected one of: cpu");
}

// --device of a spec is the override of that name, and stands so in the manifest, whose command makes the same again.
TEST_F(CliDevice, OfASpecIsAnOverrideThatTheManifestRepeats) {
  const auto manifest = [&](const char* out) {
    return nlohmann::json::parse(read_file(folder_ / out / "manifest.json"));
  };
  write_atomically(folder_ / "away.yaml", yaml() + "device: gpu\n");
  expect_refused("run --quiet --out " + path("x") + " " + path("away.yaml"));
  ASSERT_EQ(run("run --quiet --no-draw --device cpu --out " + path("a") + " " + path("away.yaml")).code, 0);
  const std::string command = manifest("a")["command"];
  EXPECT_EQ(command, "kvlab run away.yaml --set 'device=cpu'");

  std::string again = command.substr(command.find(' '));
  again.replace(again.find("away.yaml"), 9, path("away.yaml"));
  ASSERT_EQ(run(again + " --quiet --no-draw --out " + path("b")).code, 0);
  EXPECT_EQ(rows_of("b"), rows_of("a"));
  EXPECT_EQ(read_file(folder_ / "b" / "spec.yaml"), read_file(folder_ / "a" / "spec.yaml"));
  EXPECT_EQ(manifest("b")["command"], command);
}

TEST_F(CliDevice, OfASpecIsNamedOnce) {
  const std::string both = " --device cpu --set samples=1 --set device=cuda " + path("tiny.yaml");
  const std::string line = "kvlab: --device cpu and --set device=cuda: expected one of them\n";
  EXPECT_EQ(expect_refused("run --out " + path("x") + both), line);
  EXPECT_EQ(expect_refused("validate" + both), line);
  EXPECT_EQ(expect_refused("profile" + both), line);
  EXPECT_FALSE(fs::exists(path("x")));
}

}  // namespace
}  // namespace kv
