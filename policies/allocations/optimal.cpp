// The optimum of an input: the counts that lose least of the importance that the rest of this very text will give the
// entries. An oracle, to bound what any allocation of the same scorer can reach (002 Eq. 8).
//   minimise Σ over heads of L(count), L(b) = Σ of Ĩ over what is not among the first b of the scorer's order,
// Ĩ from the full-cache pass (sim/budget/oracle_importance.h), over the entries still resident; a layer's total is 1.
// solver: exact (sim/budget/exact.h), hull (the greedy of 002, sim/budget/solver.h), auto: exact where no head has more
// than 4096 entries and the search stays within 2e9 steps (a second or so), else hull: the same on every machine, but
// not of every input, so rows a sample say which: exact_splits and hull_splits, events divided by the one and the
// other. order: scorer; oracle divides as if every head kept its most important entries and then evicts by the scorer
// (002 Table 3, "without optimality gap"). An event that nothing follows (or nothing that the
// statistics can tell from what came before) divides uniformly, and counts as neither.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "kernels/error.h"
#include "sim/budget/divide.h"
#include "sim/budget/exact.h"
#include "sim/budget/oracle_importance.h"
#include "sim/cache/to_host.h"
#include "sim/policy/allocation.h"
#include "sim/policy/measured.h"
#include "sim/policy/policy.h"
#include "sim/policy/policy_order.h"

namespace kv {

namespace {

constexpr double kSearchSteps = 2e9;  // of solver auto: about a second

enum class Solver { kAutomatic, kExact, kHull };

class Optimal final : public Allocation {
 public:
  explicit Optimal(Params& params) : importance_(ImportanceOptions::read(params)) {
    const std::string solver = params.get("solver", "auto", {"auto", "exact", "hull"},
                                          "auto: exact up to 4096 entries a head and 2e9 steps, else hull; rows "
                                          "exact_splits and hull_splits count which");
    solver_ = solver == "exact" ? Solver::kExact : solver == "hull" ? Solver::kHull : Solver::kAutomatic;
    oracle_order_ =
        params.get("order", "scorer", {"scorer", "oracle"},
                   "order in which heads are thought to lose entries; oracle ignores the optimality gap") == "oracle";
  }

  Needs needs() const override { return {.future = importance_.needs()}; }

  void begin(const BatchShape& shape) override {
    source_ = shape.source;
    future_ = shape.future;
    KV_CHECK(future_);
    if (!source_->has_output_weight) {
      throw UserError(fmt::format("optimal: needs the output projection, which {} lacks", source_->name));
    }
    splits_.assign(static_cast<size_t>(shape.sequences), {});
  }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    for (int s = 0; s < args.sequences; ++s) {
      if (args.is_due(s)) divide_sequence(args, s, counts);
    }
  }

  void report(std::vector<Measured>& rows) const override {
    for (size_t s = 0; s < splits_.size(); ++s) {
      const auto add = [&](const char* metric, int splits) {
        rows.push_back({.sample = static_cast<int>(s), .metric = metric, .value = static_cast<double>(splits)});
      };
      add("exact_splits", splits_[s].exact);
      add("hull_splits", splits_[s].hull);
    }
  }

 private:
  struct Splits {
    int exact = 0;
    int hull = 0;
  };
  using Gains = std::vector<std::vector<float>>;  // [layers · kv_heads] of [length], in the order of keeping

  void divide_sequence(const AllocateArgs& args, int sequence, std::span<int32_t> counts) {
    Gains gains;
    double total = 0;
    for (size_t layer = 0; layer < args.layers.size(); ++layer) total += add_layer(args, layer, sequence, gains);
    if (total <= 0) {
      divide(args, sequence, std::vector<double>(gains.size(), 1.0), counts);
      return;
    }
    std::vector<HeadGains> heads;
    for (const auto& head : gains) heads.push_back({.gains = head, .least = 0});
    const std::vector<int32_t> split =
        solve(HullSolver(heads), args.total(sequence), splits_[static_cast<size_t>(sequence)]);
    const auto rows = static_cast<size_t>(args.rows()), kv_heads = static_cast<size_t>(args.kv_heads);
    for (size_t i = 0; i < split.size(); ++i) {
      counts[i / kv_heads * rows + static_cast<size_t>(sequence) * kv_heads + i % kv_heads] = split[i];
    }
  }

  // Returns the layer's importance before it is normalised.
  double add_layer(const AllocateArgs& args, size_t layer, int sequence, Gains& gains) const {
    double total = 0;
    for (int head = 0; head < args.kv_heads; ++head) {
      gains.push_back(gains_of(args, layer, sequence, sequence * args.kv_heads + head));
      total = std::accumulate(gains.back().begin(), gains.back().end(), total);
    }
    if (total <= 0) return 0;
    for (auto& head : std::span(gains).last(static_cast<size_t>(args.kv_heads))) {
      for (float& gain : head) gain = static_cast<float>(gain / importance_.divisor(total));
    }
    return total;
  }

  std::vector<float> gains_of(const AllocateArgs& args, size_t layer, int sequence, int row) const {
    const ScoredLayer& scored = args.layers[layer];
    const int32_t length = scored.lengths[static_cast<size_t>(row)];
    const int32_t seen = args.tokens_seen[static_cast<size_t>(sequence)];
    const auto positions = positions_to_host(args.backend, scored.cache, row, length);
    const auto importance =
        importance_after(args.backend, *source_, *future_, importance_, static_cast<int>(layer), row, seen);
    std::vector<float> gains;
    for (const int32_t slot : order_of(args, scored, row, positions)) {
      gains.push_back(importance[static_cast<size_t>(positions[static_cast<size_t>(slot)])]);
    }
    if (oracle_order_) std::sort(gains.begin(), gains.end(), std::greater<>());
    return gains;
  }

  static std::vector<int32_t> order_of(const AllocateArgs& args, const ScoredLayer& scored, int row,
                                       std::span<const int32_t> positions) {
    const auto length = static_cast<int64_t>(positions.size());
    const auto scores = to_host(args.backend, scored.scores.row(row), length);
    std::vector<float> ties;
    if (scored.ties) ties = to_host(args.backend, scored.ties.row(row), length);
    return policy_order(args.protection, positions, scores, ties);
  }

  std::vector<int32_t> solve(const HullSolver& hulls, int64_t total, Splits& splits) const {
    if (solver_ != Solver::kHull) {
      try {
        const ExactLimits limits = solver_ == Solver::kExact ? ExactLimits{} : ExactLimits{.steps = kSearchSteps};
        std::vector<int32_t> counts = solve_exact(hulls, total, limits).counts;
        ++splits.exact;
        return counts;
      } catch (const UserError&) {  // too large for it
        if (solver_ == Solver::kExact) throw;
      }
    }
    ++splits.hull;
    return hulls.at(total).counts;
  }

  ImportanceOptions importance_;
  Solver solver_ = Solver::kAutomatic;
  bool oracle_order_ = false;
  const SourceInfo* source_ = nullptr;
  const Baseline* future_ = nullptr;
  std::vector<Splits> splits_;  // [sequences] of the events so far
};

const RegisterAllocation registered{{
    .name = "optimal",
    .summary = "oracle: the counts that lose least of the importance that the rest of the text gives (002 Eq. 8); "
               "exact up to 4096 entries a head, by the hulls beyond",
    .make = [](Params& params) { return std::make_unique<Optimal>(params); },
}};

}  // namespace

}  // namespace kv
