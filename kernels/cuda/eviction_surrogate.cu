#include "kernels/eviction_surrogate.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/scan.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// What one dropped entry adds, before the mean: slope is ∂loss/∂l.
struct Term {
  double loss;
  double kl;
  double slope;
  int clipped;
};

__device__ Term term_of(const EvictionSurrogateArgs& args, double advantage, double l, double l_old,
                        double l_reference) {
  const double change = l - l_old, clamped = fmin(fmax(change, -10.0), 10.0), ratio = exp(clamped);
  const double plain = ratio * advantage;
  const double held = fmin(fmax(ratio, 1.0 - args.clip), 1.0 + args.clip) * advantage;
  Term term{-fmin(plain, held), 0, 0, held < plain};
  if (!term.clipped && change == clamped) term.slope = -plain;
  const double e = l_reference - l;
  term.kl = expm1(e) - e;
  if (args.kl_weight == 0) return term;  // an infinite divergence must not matter then
  term.loss += args.kl_weight * term.kl;
  term.slope -= args.kl_weight * expm1(e);
  return term;
}

// A number for the scores of each of the three weights.
struct Triple {
  double now;
  double old;
  double reference;
};

// One row, as the threads of its block see it. What the block does together, all of its threads call.
struct Row {
  __device__ Row(const EvictionSurrogateArgs& all, int64_t index)
      : args(all),
        row(index),
        count(max(0, all.cache.lengths[index] - all.drop_newest)),
        advantage(all.advantages[index / all.cache.kv_heads]),
        scores(all.scores.row(index)),
        old_scores(all.old_scores.row(index)),
        reference(all.reference_scores.row(index)),
        keep(all.keep.row(index)),
        gradient(all.gradient.row(index)) {}

  template <class Visit>
  __device__ void for_slots(const Visit& visit) const {
    for (int slot = static_cast<int>(threadIdx.x); slot < count; slot += kThreads) visit(slot);
  }

  __device__ bool is_candidate(int slot) const { return !args.stays || !args.stays.row(row)[slot]; }
  __device__ Triple phi(int slot) const { return {-scores[slot], -old_scores[slot], -reference[slot]}; }

  // Whether everything that is read is finite; `drawn` is how many were dropped. By the block.
  __device__ bool is_finite(bool ordered_draws, int& drawn) const {
    int bad = !isfinite(advantage), dropped = 0;
    for_slots([&](int slot) {
      if (!isfinite(scores[slot]) || !isfinite(old_scores[slot]) || !isfinite(reference[slot])) bad = 1;
      if (!keep[slot] && ordered_draws && !isfinite(args.order.row(row)[slot])) bad = 1;
      dropped += !keep[slot];
    });
    drawn = block_reduce(dropped, 0, Add());
    return !block_reduce(bad, 0, Larger());
  }

  // log Σ e^φ over the slots that belong; of none −∞. By the block.
  template <class Belongs>
  __device__ double log_total(const float* y, const Belongs& belongs) const {
    double largest = -kInfinity, sum = 0;
    for_slots([&](int slot) {
      if (belongs(slot)) largest = fmax(largest, -double{y[slot]});
    });
    largest = block_reduce(largest, double{-kInfinity}, Larger());
    for_slots([&](int slot) {
      if (belongs(slot)) sum += exp(-y[slot] - largest);
    });
    return log(block_reduce(sum, 0.0, Add())) + largest;
  }
  template <class Belongs>
  __device__ Triple log_totals(const Belongs& belongs) const {
    return {log_total(scores, belongs), log_total(old_scores, belongs), log_total(reference, belongs)};
  }

  __device__ Term rate(const Triple& phi, const Triple& total) const {
    return term_of(args, advantage, phi.now - total.now, phi.old - total.old, phi.reference - total.reference);
  }

  // The means of what the threads have added up. By the block.
  __device__ void finish(const Term& sum, int drawn) const {
    const double loss = block_reduce(sum.loss, 0.0, Add()), kl = block_reduce(sum.kl, 0.0, Add());
    const int clipped = block_reduce(sum.clipped, 0, Add());
    if (threadIdx.x == 0) write(loss / max(1, drawn), kl / max(1, drawn), static_cast<double>(clipped) / max(1, drawn));
  }
  __device__ void fill(float value) const {
    for_slots([&](int slot) { gradient[slot] = value; });
    if (threadIdx.x == 0) write(value, value, value);
  }
  __device__ void write(double loss, double kl, double clipped) const {
    args.loss[row] = static_cast<float>(loss);
    args.kl[row] = static_cast<float>(kl);
    args.clipped[row] = static_cast<float>(clipped);
  }

  const EvictionSurrogateArgs& args;
  int64_t row;
  int count;
  float advantage;
  const float* scores;
  const float* old_scores;
  const float* reference;
  const uint8_t* keep;
  float* gradient;
};

__device__ void add(Term& sum, const Term& term) {
  sum.loss += term.loss;
  sum.kl += term.kl;
  sum.clipped += term.clipped;
}

// Whether the row has draws to learn from; else all that there is to write is written. By the block.
__device__ bool begin(const Row& row, bool ordered_draws, int& drawn) {
  if (!row.is_finite(ordered_draws, drawn)) {
    row.fill(__int_as_float(0x7fc00000));
    return false;
  }
  if (drawn == 0) row.fill(0);
  return drawn > 0;
}

// One block a row. ∂l_u/∂φ_j is 1 at u less the share of j among all.
__global__ void __launch_bounds__(kThreads) marginal_row(EvictionSurrogateArgs args) {
  if (!is_due(args.rows_due, blockIdx.x)) return;
  const Row row(args, blockIdx.x);
  int drawn;
  if (!begin(row, false, drawn)) return;
  const Triple total = row.log_totals([](int) { return true; });
  Term sum{};
  row.for_slots([&](int slot) {
    if (row.keep[slot]) return;
    const Term term = row.rate(row.phi(slot), total);
    add(sum, term);
    sum.slope += term.slope;
  });
  const double slopes = block_reduce(sum.slope, 0.0, Add());
  row.for_slots([&](int slot) {
    const Triple phi = row.phi(slot);
    const double own = row.keep[slot] ? 0.0 : row.rate(phi, total).slope;
    row.gradient[slot] = static_cast<float>((exp(phi.now - total.now) * slopes - own) / drawn);
  });
  row.finish(sum, drawn);
}

// The dropped entries of a row in shared memory, in the order of their draws.
struct Draw {
  uint64_t key;  // its order, then its slot
  double total;  // log Σ e^φ over those among whom it was made
  double slope;

  __device__ int slot() const { return static_cast<int>(key & 0xffffffffu); }
};

// Ascending, by a bitonic network of the next power of two, whose upper part the caller has filled with the largest
// key.
__device__ void sort_draws(Draw* draws, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
        const int other = i ^ apart;
        if (other < i) continue;  // its own thread sees to the pair
        const uint64_t mine = draws[i].key, its = draws[other].key;
        const bool ascends = (i & run) == 0;
        if (ascends ? mine > its : mine < its) {
          draws[i].key = its;
          draws[other].key = mine;
        }
      }
      __syncthreads();
    }
  }
}

__device__ void collect_draws(const Row& row, Draw* draws, int drawn, int capacity) {
  __shared__ int found;
  int size = 1;
  while (size < drawn) size *= 2;
  KV_DEVICE_CHECK(drawn <= kMostDrawn && size <= capacity);
  if (threadIdx.x == 0) found = 0;
  for (int i = drawn + static_cast<int>(threadIdx.x); i < size; i += kThreads) draws[i].key = ~uint64_t{0};
  __syncthreads();
  row.for_slots([&](int slot) {
    if (row.keep[slot]) return;
    KV_DEVICE_CHECK(row.is_candidate(slot));
    // In any order: keys differ by their slots, so sorting leaves no trace of it.
    draws[atomicAdd(&found, 1)].key =
        uint64_t{ordered(row.args.order.row(row.row)[slot])} << 32 | static_cast<uint32_t>(slot);
  });
  __syncthreads();
  sort_draws(draws, size);
}

// log(e^a + e^b), of −∞, too.
struct LogAdd {
  __device__ double operator()(double a, double b) const {
    const double high = fmax(a, b), low = fmin(a, b);
    return low == -kInfinity ? high : high + log1p(exp(low - high));
  }
};

// value is this thread's of a tile; the result its log-sum with those of lower threads and of all tiles before, which
// are in `before`, to which the tile is added. By the block.
__device__ double log_sum_until(double value, double& before) {
  using Scan = cub::BlockScan<double, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  double until, tile;
  __syncthreads();  // readers of the previous call are done
  Scan(storage).InclusiveScan(value, until, LogAdd(), tile);
  until = LogAdd()(before, until);
  before = LogAdd()(before, tile);
  return until;
}

// Rates the draws from the last one on, each among those after it and the `rest`.
__device__ Term rate_draws(const Row& row, Draw* draws, int drawn, Triple rest) {
  Term sum{};
  for (int done = 0; done < drawn; done += kThreads) {
    const int at = drawn - 1 - done - static_cast<int>(threadIdx.x);
    const Triple none{-kInfinity, -kInfinity, -kInfinity};
    const Triple phi = at >= 0 ? row.phi(draws[at].slot()) : none;
    const Triple total{log_sum_until(phi.now, rest.now), log_sum_until(phi.old, rest.old),
                       log_sum_until(phi.reference, rest.reference)};
    if (at < 0) continue;
    const Term term = row.rate(phi, total);
    add(sum, term);
    draws[at].total = total.now;
    draws[at].slope = term.slope;
  }
  return sum;
}

// The map x → factor · x + sum, and two of them one after the other.
struct Carried {
  double factor;
  double sum;
};
struct Then {
  __device__ Carried operator()(const Carried& first, const Carried& second) const {
    return {first.factor * second.factor, first.sum * second.factor + second.sum};
  }
};

// Writes the gradients of drawn slots: an entry's own slope, and its shares in the sums of the draws until its own.
// Totals fall from draw to draw, so slopes are carried on relative to the newest one, where nothing overflows. The
// result is what the last draw carries.
__device__ double pull_draws(const Row& row, const Draw* draws, int drawn) {
  using Scan = cub::BlockScan<Carried, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  double before = 0;
  for (int first = 0; first < drawn; first += kThreads) {
    const int at = first + static_cast<int>(threadIdx.x);
    Carried carried{1, 0}, tile;
    if (at < drawn) carried = {at > 0 ? exp(draws[at].total - draws[at - 1].total) : 0.0, draws[at].slope};
    __syncthreads();  // readers of the previous tile's scan are done
    Scan(storage).InclusiveScan(carried, carried, Then(), tile);
    if (at < drawn) {
      const double until = carried.factor * before + carried.sum;
      const int slot = draws[at].slot();
      const double share = exp(row.phi(slot).now - draws[at].total);
      row.gradient[slot] = static_cast<float>((share * until - draws[at].slope) / drawn);
    }
    before = tile.factor * before + tile.sum;
  }
  return before;
}

// One block a row: sorted draws, a scan from the last one for their totals, one from the first for the gradients.
__global__ void __launch_bounds__(kThreads) plackett_luce_row(EvictionSurrogateArgs args, int capacity) {
  extern __shared__ Draw draws[];
  if (!is_due(args.rows_due, blockIdx.x)) return;
  const Row row(args, blockIdx.x);
  int drawn;
  if (!begin(row, true, drawn)) return;
  collect_draws(row, draws, drawn, capacity);
  const auto was_left = [&](int slot) { return row.keep[slot] && row.is_candidate(slot); };
  const Term sum = rate_draws(row, draws, drawn, row.log_totals(was_left));
  __syncthreads();
  const double slopes = pull_draws(row, draws, drawn), total = draws[drawn - 1].total;
  row.for_slots([&](int slot) {
    if (!row.keep[slot]) return;
    const double share = row.is_candidate(slot) ? exp(row.phi(slot).now - total) : 0.0;
    row.gradient[slot] = static_cast<float>(share * slopes / drawn);
  });
  row.finish(sum, drawn);
}

}  // namespace

void eviction_surrogate(const EvictionSurrogateArgs& args) {
  if (args.law == DrawLaw::kMarginal) {
    launch(marginal_row, args.cache.rows, kThreads, 0, args);
    return;
  }
  int capacity = 1;
  while (capacity < kMostDrawn && capacity < args.cache.max_length) capacity *= 2;
  launch(plackett_luce_row, args.cache.rows, kThreads, static_cast<size_t>(capacity) * sizeof(Draw), args, capacity);
}

}  // namespace kv::cuda
