#include "kernels/gate_sparsity.h"

#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/token_tiles.h"

namespace kv::cpu {

namespace {

struct Rated {
  double loss = 0;
  int64_t admitted = 0;
};

// Adds the tile's gradient; its sums.
Rated rate_tile(const GateSparsityArgs& args, const TokenTile& tile, double share) {
  Rated sum;
  for (int64_t s = tile.first; s < tile.end; ++s) {
    const double windowed = windowed_share(args, tile.segment, s);
    const auto pull = static_cast<float>(args.weight * share * (1 - windowed) * 2);
    const int64_t first = args.shape.place(tile.layer, tile.segment, s);
    for (int64_t place = first; place < first + args.shape.heads; ++place) {
      const float closed = 1 - args.gates[place];
      sum.loss += windowed + (1 - windowed) * (1 - double{closed} * double{closed});
      sum.admitted += args.gates[place] > args.threshold;
      args.gradient[place] += pull * closed;
    }
  }
  return sum;
}

}  // namespace

void gate_sparsity(const GateSparsityArgs& args) {
  const int64_t elements = args.shape.elements();
  KV_CHECK(elements <= std::numeric_limits<int32_t>::max());
  const TokenTiles tiles(args.shape);
  const double share = elements > 0 ? 1.0 / static_cast<double>(elements) : 0;
  std::vector<Rated> sums(static_cast<size_t>(tiles.count()));
  tiles.for_each([&](const TokenTile& tile, int64_t index) { sums[index] = rate_tile(args, tile, share); });
  Rated all;
  for (const Rated& sum : sums) {
    all.loss += sum.loss;
    all.admitted += sum.admitted;
  }
  *args.loss = static_cast<float>(all.loss * share);
  *args.admitted = static_cast<int32_t>(all.admitted);
}

}  // namespace kv::cpu
