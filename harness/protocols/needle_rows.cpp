#include "harness/protocols/needle_rows.h"

#include <algorithm>

#include "harness/protocols/unit.h"
#include "sim/cache/to_host.h"

namespace kv {

namespace {

using Ranges = std::vector<std::pair<int32_t, int32_t>>;

double resident_share(std::span<const int32_t> positions, const Ranges& sources) {
  int64_t tokens = 0, resident = 0;
  for (const auto& [begin, end] : sources) {
    tokens += end - begin;
    resident += std::lower_bound(positions.begin(), positions.end(), end) -
                std::lower_bound(positions.begin(), positions.end(), begin);
  }
  return static_cast<double>(resident) / static_cast<double>(tokens);
}

}  // namespace

bool asks_for_needles(Params& params) {
  return params.get("heads", "no", {"no", "yes"},
                    "yes: rows needle_kept, the share of a question's needles that each KV head still holds") == "yes";
}

std::vector<NeedleShare> needle_shares(Backend& backend, const SourceInfo& info, const LoopState& state, int sequence,
                                       const Exam& exam, std::span<const size_t> questions) {
  std::vector<NeedleShare> shares;
  const bool known = std::any_of(questions.begin(), questions.end(), [&](size_t q) {
    return q < exam.questions.size() && !exam.questions[q].sources.empty();
  });
  if (!known) return shares;
  for (int layer = 0; layer < info.layers; ++layer) {
    const PagedView cache = state.cache.view(layer);
    for (int head = 0; head < info.kv_heads; ++head) {
      const int64_t row = int64_t{sequence} * info.kv_heads + head;
      const std::vector<int32_t> positions =
          positions_to_host(backend, cache, row, state.cache.lengths(layer)[static_cast<size_t>(row)]);
      for (const size_t q : questions) {
        if (q >= exam.questions.size() || exam.questions[q].sources.empty()) continue;
        shares.push_back({.layer = info.layer_numbers[static_cast<size_t>(layer)],
                          .head = head,
                          .question = q,
                          .kept = resident_share(positions, exam.questions[q].sources)});
      }
    }
  }
  return shares;
}

void add_needle_rows(std::vector<Row>& rows, const Row& blank, std::span<const NeedleShare> shares) {
  for (const NeedleShare& share : shares) {
    Row& row = add_row(rows, blank, "needle_kept", share.kept, "");
    row.layer = share.layer;
    row.head = share.head;
    row.x = static_cast<double>(share.question);
  }
}

}  // namespace kv
