#include "harness/metrics/token_record.h"

#include "kernels/check.h"

namespace kv {

void TokenRecord::begin(const CaseView& view) {
  has_losses_ = false;
  nll_.clear();
  argmax_.clear();
  for (const Sample* sample : view.samples) {
    nll_.emplace_back(sample->ids.size());
    argmax_.emplace_back(sample->ids.size());
  }
}

void TokenRecord::add(const Block& block, const TokenLosses& losses) {
  if (losses.nll.empty()) return;
  has_losses_ = true;
  for (const Segment& segment : block.segments) {
    const size_t s = static_cast<size_t>(segment.sequence);
    KV_CHECK(static_cast<size_t>(segment.first_position + segment.count) <= nll_[s].size());
    for (int32_t i = 0; i < segment.count; ++i) {
      const size_t from = static_cast<size_t>(segment.first_token + i);
      const size_t to = static_cast<size_t>(segment.first_position + i);
      nll_[s][to] = losses.nll[from];
      argmax_[s][to] = losses.argmax[from];
    }
  }
}

}  // namespace kv
