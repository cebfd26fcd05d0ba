#pragma once

#include <algorithm>

#include "kernels/expiry.h"
#include "sim/policy/admission.h"
#include "sim/policy/params.h"

namespace kv {

// An admission by position: the first tokens of a sequence stay, and every other that it turns away is seen for a
// window.
class WindowedAdmission : public Admission {
 public:
  // Reads `sinks` and `window`.
  WindowedAdmission(Params& params, int sinks, int window);

  int window() const override { return window_; }
  int sinks() const { return sinks_; }
  void admit(const LayerView& view, int32_t* expires) override;
  // Whoever says that others stay, in decide(), may know how many: of those that learned gates let in nothing is known.
  SeenEntries least_seen(int64_t tokens, int64_t heads) const override {
    return SeenEntries::alike(by_position(tokens), heads);
  }

 protected:
  // What of the op's arguments is not by position: who else stays, by heads, gates or a draw (kernels/expiry.h), of the
  // view's layers. Called for every block. Ops alone, as in admit(): a recorded step of generation cannot upload, and
  // repeats what a loop over view.segments found when it was recorded. So tables of the host's go up in begin(), and
  // gates are computed by ops.
  virtual void decide(const LayerView&, ExpiryArgs&) {}

  // Of so many tokens those that are seen for their position alone.
  int64_t by_position(int64_t tokens) const { return std::min(tokens, int64_t{sinks_} + window_); }

 private:
  int sinks_, window_;
};

}  // namespace kv
