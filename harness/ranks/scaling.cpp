#include "harness/ranks/scaling.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace kv {
namespace {

struct Rank {
  double free_at = 0;
  int number = 0;
  int model = -1;

  bool operator>(const Rank& other) const { return std::tie(free_at, number) > std::tie(other.free_at, other.number); }
};

}  // namespace

ScalingEstimate estimate_scaling(const std::vector<Piece>& pieces, const Overheads& overheads, int ranks) {
  ScalingEstimate estimate{.ranks = ranks};
  const int first_model = pieces.empty() ? -1 : pieces.front().model;
  std::priority_queue<Rank, std::vector<Rank>, std::greater<>> free;
  for (int r = 0; r < ranks; ++r) free.push({overheads.start, r, first_model});
  double end = overheads.start;
  for (const Piece& piece : pieces) {
    Rank rank = free.top();
    free.pop();
    const double opening = rank.model == piece.model ? 0 : overheads.open;
    estimate.open += opening;
    estimate.work += piece.seconds;
    rank.free_at += opening + piece.seconds;
    rank.model = piece.model;
    end = std::max(end, rank.free_at);
    free.push(rank);
  }
  estimate.start = ranks * overheads.start;
  estimate.assembly = ranks * overheads.assembly;
  for (; !free.empty(); free.pop()) estimate.waiting += end - free.top().free_at;
  estimate.seconds = end + overheads.assembly;
  return estimate;
}

}  // namespace kv
