#pragma once

#include <string_view>
#include <vector>

#include "kernels/paged.h"
#include "sim/policy/layer_view.h"
#include "sim/policy/registry.h"
#include "sim/policy/slot.h"

namespace kv {

// Decides which pages attention reads when tokens come one at a time.
class Selection : public Slot {
 public:
  static constexpr std::string_view kKind = "selection";
  // Whether it ever leaves anything out.
  virtual bool selects() const { return false; }
  // In steps of one token, after it was appended and before it is attended: `read` is the layer's cache, of which a
  // selection puts in other page tables, other lengths or both, or reads everything; or a row a query head in place of
  // a KV head (kv_heads = q_heads, sharing_rows = group). A row's pages are those of the cache's row, in order of
  // position, whole, and among them those of the newest `expiring` slots and the last. Rows of sequences without a
  // token read anything sound. The view is valid until the next call. Ops alone, as an admission's.
  virtual void select(const LayerView&, PagedView& /*read*/) {}
};

using SelectionEntry = PartEntry<Selection>;
using RegisterSelection = RegisterPart<Selection>;

// Sorted by name.
std::vector<const SelectionEntry*> selections();
std::vector<DeclaredParam> describe_selection(std::string_view name);

}  // namespace kv
