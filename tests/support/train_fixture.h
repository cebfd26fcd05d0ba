#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/training_run.h"

// Trainings by a spec on the tiny Llama of tests/data.

namespace kv {

inline constexpr int kSteps = 6;

class Train : public TrainingRun {
 protected:
  Train() : TrainingRun("foresight-kv") { write_atomically(spec_file(), yaml()); }

  static std::string yaml() {
    return TrainingRun::yaml("foresight-kv", "steps: 6, batch: 2, budget: 24, interval: 12, warm_up: 1");
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
