#pragma once

#include <cstdint>
#include <vector>

#include "sim/policy/policy.h"
#include "sim/replay/schedule.h"

namespace kv {

// Of what an admission lets in, how much is known before it comes: what surely will be there, or what may.
enum class Foreseen : uint8_t { kSurely, kAtMost };

// What comes to heads.
struct Arrivals {
  const Admission* admission = nullptr;  // null: every token's entry stays
  int64_t block = 0;                     // tokens at most that pages are taken for together; for admissions alone
  Foreseen foreseen = Foreseen::kAtMost;
};

// What the heads of one sequence can hold at most, known before anything runs. Their total is exact where budgets are
// equal totals (Allocation::keeps_total); how it is divided is only bounded (Allocation::most_kept). Exact under the
// uniform allocation. Under an
// admission heads may hold unequally many: at most what is foreseen of it, and what came since the last sweep.
class ResidentBound {
 public:
  explicit ResidentBound(const SourceInfo& info, const Arrivals& arrivals = {});

  void add(int64_t tokens);  // every head gets them
  // An event that keeps `kept` entries a head on average, divided so; does nothing where no more are there.
  void cut(int64_t kept, const Allocation& allocation);
  // Every head gets them, and events that leave no more than `most` a head on average fall as soon as more are there;
  // one head may keep all that it gets, unless heads grow alike under an allocation that leaves them alike.
  void fill(int64_t tokens, int64_t most, const Allocation& allocation);

  int64_t pages() const { return pages_; }      // of all layers and KV heads together, at their peak
  int64_t longest() const { return longest_; }  // entries of one head, at its peak

 private:
  int64_t heads() const { return int64_t{layers_} * kv_heads_; }
  bool is_admitted() const { return arrivals_.admission && arrivals_.admission->window() > 0; }
  void forget_unsure(const Allocation& allocation);
  void sweep();  // what the admission turns away
  void note();   // what is there now

  int layers_;
  int kv_heads_;
  Arrivals arrivals_;
  int64_t tokens_ = 0;  // that came
  int64_t total_ = 0;   // now, over all heads
  int64_t head_ = 0;    // now, of one head
  int64_t pages_ = 0;
  int64_t longest_ = 0;
};

// [sequences], after the whole schedule, with events where a capacity is passed (ReplayArgs::capacity).
std::vector<ResidentBound> resident_bounds(const Schedule& schedule, const Policy& policy, const SourceInfo& info,
                                           const Capacity* capacity = nullptr, Foreseen foreseen = Foreseen::kAtMost);

// One sequence of a generation (sim/replay/generate.h), in tokens.
struct GenerationLength {
  int64_t prompt = 0;
  int64_t kept = 0;  // entries a head that a one-shot cut leaves of the prompt; all of them where nothing is cut there
  int64_t more = 0;  // processed after the prompt
  int64_t budget = 0, interval = 0;  // of the decode protocol, else 0
};

// After the whole generation, whatever the number of its cuts. At a cut the total falls to budget · heads and, by the
// interval's tokens, every head grows alike until the next: the total never exceeds (budget + interval) · heads, and
// the pages are those of that total with less than one page a head wasted. One head, though, may have kept all that it
// had at every cut so far, and so grows on from interval to interval until Allocation::most_kept holds it: what it
// can have before one cut is a bound on one event only.
ResidentBound generation_bound(const SourceInfo& info, const Allocation& allocation, const GenerationLength& length,
                               const Arrivals& arrivals = {});

}  // namespace kv
