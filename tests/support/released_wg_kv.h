#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/io/safetensors.h"
#include "sim/policy/admission.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {

// tests/data/wg_kv: what the released codes of WG-KV and Quest make of one sample and its given gates.
class ReleasedWgKv {
 public:
  static constexpr int kLayers = 2, kHeads = 2, kRows = kLayers * kHeads, kQHeads = 4, kGroup = 2, kDim = 8;
  static constexpr int32_t kTokens = 160, kPrompt = 70, kWindow = 16;
  static constexpr float kTau = 0.1f;

  ReleasedWgKv();

  // So many layers, the file's two over and over. Keys are values, too.
  static SourceInfo info(int layers);
  TinySample sample(int layers) const;

  std::vector<float> floats(const std::string& name) const { return file_.read_f32(file_.require(name)); }
  std::vector<int32_t> numbers(const std::string& name) const { return file_.read_i32(file_.require(name)); }
  // Of a tensor of bits, a bit a position from the lowest on: those of its `row`-th last dimension.
  std::vector<int32_t> positions(const std::string& name, int64_t row) const;

 private:
  SafetensorsFile file_;
};

// Lets in what given gates rate above τ, by the op of admission wg-kv. Reads host memory, of one sequence: for the CPU
// backend.
class GivenGates final : public Admission {
 public:
  explicit GivenGates(std::vector<float> gates) : gates_(std::move(gates)) {}

  int window() const override { return ReleasedWgKv::kWindow; }
  void admit(const LayerView& view, int32_t* expires) override;

 private:
  std::vector<float> gates_;  // [layers, tokens, kv_heads]
};

}  // namespace kv::ref
