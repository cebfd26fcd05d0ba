#pragma once

#include <string>
#include <string_view>

#include "sim/policy/params.h"
#include "sim/policy/scorer.h"

namespace kv {

// A scorer that protects nothing unless asked: options `sinks` and `recent`, both 0 by default. UserError for a budget
// that is less than both together.
class ProtectedEnds : public Scorer {
 public:
  Protection protects(int, int) const final { return {.sinks = sinks_, .recent = recent_}; }
  void check_budget(int kept, int) const final;

 protected:
  // What papers run it with, to be added to the options' help: " (002: 4)".
  struct PaperValues {
    std::string_view sinks = "", recent = "";
  };
  explicit ProtectedEnds(Params& params) : ProtectedEnds(params, PaperValues{}) {}
  ProtectedEnds(Params& params, const PaperValues& paper);

 private:
  std::string policy_;
  int sinks_;
  int recent_;
};

}  // namespace kv
