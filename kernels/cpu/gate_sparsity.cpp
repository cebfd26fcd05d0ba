#include "kernels/gate_sparsity.h"

#include <numeric>
#include <vector>

#include "kernels/cpu/token_tiles.h"

namespace kv::cpu {

namespace {

// Adds the tile's gradient; its sum of losses.
double rate_tile(const GateSparsityArgs& args, const TokenTile& tile, double share) {
  double sum = 0;
  for (int64_t s = tile.first; s < tile.end; ++s) {
    const double windowed = windowed_share(args, tile.segment, s);
    const auto pull = static_cast<float>(args.weight * share * (1 - windowed) * 2);
    const int64_t first = args.shape.place(tile.layer, tile.segment, s);
    for (int64_t place = first; place < first + args.shape.heads; ++place) {
      const float closed = 1 - args.gates[place];
      sum += windowed + (1 - windowed) * (1 - double{closed} * double{closed});
      args.gradient[place] += pull * closed;
    }
  }
  return sum;
}

}  // namespace

void gate_sparsity(const GateSparsityArgs& args) {
  const TokenTiles tiles(args.shape);
  const int64_t elements = args.shape.elements();
  const double share = elements > 0 ? 1.0 / static_cast<double>(elements) : 0;
  std::vector<double> sums(static_cast<size_t>(tiles.count()));
  tiles.for_each([&](const TokenTile& tile, int64_t index) { sums[index] = rate_tile(args, tile, share); });
  *args.loss = static_cast<float>(std::accumulate(sums.begin(), sums.end(), 0.0) * share);
}

}  // namespace kv::cpu
