// Quest: a query reads the pages that may hold the keys which it attends to most.
// Paper: Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference" (ICML 2024), alone and, as
// 004 combines it with admission. Each page of 16 entries knows the least and the largest of each element of its keys,
// which bound a query's products with them (kernels/select_pages.h). Nothing leaves the cache.
//   mode wg-kv     one set of pages a KV head, by the largest bound of its query heads, in all layers (004's code).
//   mode official  one a query head; the first two layers read everything (the released code).
// Of `pages` the last is always one and, where entries expire, so are those that hold the newest window + 16: they
// count against the budget (004's code reads its local window beside it, and takes ceil(max(budget − window, 0) / 16)
// more). Only steps of one token select: prompts are read whole.

#include <algorithm>
#include <utility>

#include "kernels/select_pages.h"
#include "policies/parts/options.h"
#include "sim/policy/selection.h"

namespace kv {

namespace {

constexpr int kDenseLayers = 2;  // of mode official

class Quest final : public Selection {
 public:
  explicit Quest(Params& params)
      : pages_(option_at_least(params, 1, "pages", 64, "pages of 16 entries that a query reads, the last among them")),
        per_query_head_(
            params.get("mode", "wg-kv", {"wg-kv", "official"},
                       "wg-kv: a set of pages a KV head, in all layers; official: one a query head, and the "
                       "first two layers read everything") == "official") {}

  Needs needs() const override { return {.page_bounds = true}; }
  bool selects() const override { return true; }

  void select(const LayerView& view, PagedView& read) override {
    if (per_query_head_ && view.layer < kDenseLayers) return;
    const int64_t rows = int64_t{view.sequences} * (per_query_head_ ? view.q_heads : view.kv_heads);
    table_.reserve(view.backend, DType::kI32, rows * view.cache.max_pages);
    lengths_.reserve(view.backend, DType::kI32, rows);
    view.backend.select_pages({.queries = view.projections.queries,
                               .cache = view.cache,
                               .segments = view.device_segments,
                               .segment_count = std::ssize(view.segments),
                               .q_heads = view.q_heads,
                               .per_query_head = per_query_head_,
                               .pages = pages_,
                               .newest = static_cast<int>(std::max<int64_t>(1, view.cache.expiring)),
                               .page_table = table_.ref().as<int32_t>(),
                               .lengths = lengths_.ref().as<int32_t>()});
    read.page_table = std::as_const(table_).ref().as<int32_t>();
    read.lengths = std::as_const(lengths_).ref().as<int32_t>();
    read.rows = rows;
    if (!per_query_head_) return;
    read.kv_heads = view.q_heads;
    read.sharing_rows = view.group();
  }

 private:
  int pages_;
  bool per_query_head_;
  Tensor table_, lengths_;  // [rows, max_pages], [rows]
};

const RegisterSelection registered{{
    .name = "quest",
    .summary = "pages by bounds of what a query's products with their keys can be (Quest, Tang et al. 2024; 004)",
    .make = [](Params& params) { return std::make_unique<Quest>(params); },
}};

}  // namespace

}  // namespace kv
