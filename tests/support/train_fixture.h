#pragma once

#include <nlohmann/json.hpp>

#include "harness/train.h"
#include "sim/io/safetensors.h"
#include "tests/support/run_fixture.h"

// Trainings by a spec on the tiny Llama of tests/data.

namespace kv {

inline constexpr int kSteps = 6;

class Train : public RunFixture {
 protected:
  Train() { write_atomically(spec_file(), yaml()); }

  static std::string yaml() {
    return "# Does it learn?\nmodel: " + ref::source_path("tests/data/llama") +
           "\n"
           "protocol: train\n"
           "data: [{name: noise, ids: ids.safetensors, tokens: 48}]\n"
           "policies: [foresight-kv]\n"
           "learn: {steps: 6, batch: 2, budget: 24, interval: 12, warm_up: 1}\n"
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
  std::filesystem::path weights_of(const std::string& out) const { return folder_ / out / "foresight-kv.safetensors"; }
  // Without what says when and where they were made.
  std::map<std::string, std::vector<float>> tensors_of(const std::string& out) const {
    const SafetensorsFile file = SafetensorsFile::open(weights_of(out));
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorInfo& tensor : file.tensors()) tensors[tensor.name] = file.read_f32(tensor);
    return tensors;
  }
  std::string refusal(const std::vector<std::string>& overrides) const {
    return refusal(overrides, options("refused"));
  }
  std::string refusal(const std::vector<std::string>& overrides, const RunOptions& options) const {
    const std::string message = test::user_error([&] { train(spec(overrides), options); });
    return message.starts_with(spec_file().string()) ? message.substr(spec_file().string().size()) : message;
  }
  // Of a second stage that goes on from these weights.
  static std::vector<std::string> reinforced(const std::filesystem::path& start) {
    return {"learn.stage=reinforced", "learn.start=" + start.string(), "learn.group=2", "learn.schedule=constant"};
  }
  std::vector<std::filesystem::path> checkpoints_of(const std::string& out) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / out / "checkpoints")) {
      files.push_back(entry.path());
    }
    return files;
  }
  RunOptions fresh(const std::string& out) const {
    RunOptions fresh = options(out);
    fresh.start = Start::kFresh;
    return fresh;
  }
  // The same results, the weights in another folder.
  RunOptions elsewhere(const std::string& out, const std::string& weights) const {
    RunOptions elsewhere = options(out);
    elsewhere.weights = folder_ / weights;
    return elsewhere;
  }
  nlohmann::json made_of(const std::string& out) const {
    return nlohmann::json::parse(SafetensorsFile::open(weights_of(out)).metadata().at("made"));
  }
  void write_ids(const std::string& name, int64_t count) const {
    const std::vector<int32_t> ids(static_cast<size_t>(count), 7);
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {count}, .data = ids.data()}};
    write_safetensors(folder_ / name, tensors);
  }
};

}  // namespace kv
