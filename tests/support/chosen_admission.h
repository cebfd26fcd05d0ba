#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/expiry.h"
#include "sim/policy/admission.h"

namespace kv::ref {

// Lets stay what a function of (position, layer, KV head) says, which the host asks at every step.
class ChosenAdmission final : public Admission {
 public:
  using Stays = std::function<bool(int32_t position, int layer, int head)>;
  ChosenAdmission(int window, Stays stays) : window_(window), stays_(std::move(stays)) {}
  Needs needs() const override { return {.host_steps = true}; }
  int window() const override { return window_; }
  void admit(const LayerView& view, int32_t* expires) override {
    std::vector<int32_t> decided;  // [tokens, kv_heads], a segment behind the other
    for (const Segment& segment : view.segments) {
      for (int32_t i = 0; i < segment.count; ++i) {
        for (int head = 0; head < view.kv_heads; ++head) {
          const int32_t position = segment.first_position + i;
          decided.push_back(stays_(position, view.layer, head) ? kNeverExpires : position + window_);
        }
      }
    }
    if (!decided.empty()) view.backend.upload(expires, decided.data(), decided.size() * sizeof(int32_t));
  }

 private:
  int window_;
  Stays stays_;
};

}  // namespace kv::ref
