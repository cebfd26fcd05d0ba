#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/train.h"
#include "sim/io/safetensors.h"
#include "tests/support/run_fixture.h"

namespace kv {

// A training on the tiny Llama of tests/data, from a spec to the weights that it writes.
class TrainingRun : public RunFixture {
 protected:
  explicit TrainingRun(std::string weights) : weights_(std::move(weights)) {}

  static std::string yaml(const std::string& policies, const std::string& learn) {
    return "# Does it learn?\nmodel: " + ref::source_path("tests/data/llama") +
           "\n"
           "protocol: train\n"
           "data: [{name: noise, ids: ids.safetensors, tokens: 48}]\n"
           "policies: [" +
           policies + "]\nlearn: {" + learn +
           "}\n"
           "samples: 3\n"
           "seed: 5\n"
           "tables: []\n";
  }
  RunOptions options(const std::string& out) const {
    RunOptions options = RunFixture::options(out);
    options.weights = folder_ / out;
    options.checkpoint_seconds = 0;  // after every step
    return options;
  }
  std::filesystem::path weights_of(const std::string& out) const { return folder_ / out / (weights_ + ".safetensors"); }
  // Without what says when and where they were made.
  std::map<std::string, std::vector<float>> tensors_of(const std::string& out) const {
    const SafetensorsFile file = SafetensorsFile::open(weights_of(out));
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorInfo& tensor : file.tensors()) tensors[tensor.name] = file.read_f32(tensor);
    return tensors;
  }

 private:
  std::string weights_;  // their file's name
};

}  // namespace kv
