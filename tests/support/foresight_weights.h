#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kernels/half.h"
#include "policies/parts/foresight_scorer.h"
#include "sim/learned/learned_file.h"
#include "tests/support/backends.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {

// The source of expect_agrees, and weights of which each head has its own, the same in both layers: large enough for
// the hidden units to bend.
struct ForesightWeights {
  SourceInfo info = tiny_info(2, 4, 2, 8);
  ForesightShape shape;
  std::vector<std::vector<float>> of_heads;

  explicit ForesightWeights(ForesightShape its_shape) : shape(its_shape) {
    const int64_t elements = elements_of(shape.parts(info));
    for (uint32_t head = 0; head < 2; ++head) {
      of_heads.push_back(random_values(elements, 31 + head));
      for (float& weight : of_heads.back()) weight = bf16_to_f32(f32_to_bf16(0.5F * weight));  // as a file holds them
    }
  }
  std::vector<float> parameters() const {
    std::vector<float> all;
    for (int layer = 0; layer < info.layers; ++layer) {
      for (const std::vector<float>& head : of_heads) all.insert(all.end(), head.begin(), head.end());
    }
    return all;
  }
  void write(const std::filesystem::path& path) const {
    write_learned(path, {.learner = "foresight-kv",
                         .model = "tiny",
                         .fingerprint = "none",
                         .settings = shape.settings(),
                         .origin = "{}",
                         .layers = info.layers,
                         .kv_heads = info.kv_heads,
                         .parts = shape.parts(info),
                         .parameters = parameters()});
  }
};

}  // namespace kv::ref
