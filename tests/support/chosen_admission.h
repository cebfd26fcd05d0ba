#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kernels/expiry.h"
#include "sim/policy/admission.h"

namespace kv::ref {

// Lets stay what a function of (position, layer, KV head) says. Writes host memory: for the CPU backend.
class ChosenAdmission final : public Admission {
 public:
  using Stays = std::function<bool(int32_t position, int layer, int head)>;
  ChosenAdmission(int window, Stays stays) : window_(window), stays_(std::move(stays)) {}
  int window() const override { return window_; }
  void admit(const LayerView& view, int32_t* expires) override {
    for (const Segment& segment : view.segments) {
      for (int32_t i = 0; i < segment.count; ++i) {
        for (int head = 0; head < view.kv_heads; ++head) {
          const int32_t position = segment.first_position + i;
          expires[(segment.first_token + i) * view.kv_heads + head] =
              stays_(position, view.layer, head) ? kNeverExpires : position + window_;
        }
      }
    }
  }

 private:
  int window_;
  Stays stays_;
};

}  // namespace kv::ref
