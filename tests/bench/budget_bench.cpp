#include <string>

#include "sim/budget/exact.h"
#include "tests/bench/bench.h"
#include "tests/support/budget_problems.h"

// Dividing a budget over the 288 heads of Qwen3-4B (36 layers of 8), on one core. Gains are heavy-tailed, of unequal
// scale, and in an order of moderate fidelity, as a heuristic's are.

namespace kv::bench {
namespace {

constexpr int kHeads = 288;
constexpr int kExactEntries = 4096;
constexpr int kGridPoints = 99;

ref::BudgetProblem draw_problem(ref::GainKind kind, int entries) {
  Random random(1);
  ref::BudgetProblem problem;
  for (int h = 0; h < kHeads; ++h) {
    problem.gains.push_back(ref::draw_gains(random, kind, entries));
    const auto scale = static_cast<float>(0.25 + random.uniform());
    for (float& gain : problem.gains.back()) gain *= scale;
  }
  return problem;
}

int64_t fifth(const HullSolver& solver) { return solver.most_total() / 5; }  // 80 % removed

// What one event costs: hulls and one total.
void solve_hull(Device&, Samples& samples, ref::GainKind kind, int entries) {
  const ref::BudgetProblem problem = draw_problem(kind, entries);
  size_t blocks = 0;
  double gap = 0;
  samples.take({.bytes = 4.0 * kHeads * entries}, [&] {
    const HullSolver solver(problem.heads());
    const BudgetSplit split = solver.at(fifth(solver));
    gap = relative_gap(split.loss, split.bound);
    blocks = 0;
    for (const LossHull& hull : solver.hulls()) blocks += hull.blocks();
  });
  samples.count("gap_to_bound", gap);
  samples.count("blocks", static_cast<double>(blocks));
}

// What a calibration question costs beyond the hulls: 1 % to 99 %.
void solve_grid(Device&, Samples& samples) {
  const ref::BudgetProblem problem = draw_problem(ref::GainKind::kNoisy, kExactEntries);
  const HullSolver solver(problem.heads());
  samples.take({}, [&] {
    for (int point = 1; point <= kGridPoints; ++point) {
      benchmark::DoNotOptimize(solver.at(solver.most_total() * point / 100));
    }
  });
}

void solve_exactly(Device&, Samples& samples, ref::GainKind kind) {
  const ref::BudgetProblem problem = draw_problem(kind, kExactEntries);
  const HullSolver solver(problem.heads());
  const BudgetSplit greedy = solver.at(fifth(solver));
  BudgetSplit exact;
  samples.take({}, [&] { exact = solve_exact(solver, fifth(solver)); });
  samples.count("greedy_gap", relative_gap(greedy.loss, exact.loss));
  samples.count("gap_to_bound", relative_gap(exact.loss, exact.bound));
}

const Family kBudget{[](Device& device) {
  if (!device.is_cpu()) return;
  for (const int entries : {4096, 131072}) {
    const std::string shape = std::to_string(kHeads) + "x" + std::to_string(entries);
    device.add("budget_hull/" + shape,
               [entries](Device& on, Samples& samples) { solve_hull(on, samples, ref::GainKind::kNoisy, entries); });
    // Every entry is a block of its own: the most time and memory.
    device.add("budget_hull/" + shape + " sorted",
               [entries](Device& on, Samples& samples) { solve_hull(on, samples, ref::GainKind::kSorted, entries); });
  }
  device.add("budget_hull/288x4096 99 totals", solve_grid);
  device.add("budget_exact/288x4096",
             [](Device& on, Samples& samples) { solve_exactly(on, samples, ref::GainKind::kNoisy); });
  device.add("budget_exact/288x4096 zeros",
             [](Device& on, Samples& samples) { solve_exactly(on, samples, ref::GainKind::kZeros); });
}};

}  // namespace
}  // namespace kv::bench
