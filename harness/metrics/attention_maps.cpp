// Attention maps of one head of each kind, found automatically (001 Fig. 1), from the full-cache pass.
//
// Let P_b(j) be the mean attention that query block b of size L puts on key j (mean over queries and the group: maps
// are of KV heads). Key j is *near* for block b if it lies in b or the block before it, j >= (b − 1)·L, else *far*. Let
// P̄_b(j) be the mean of P_b'(j) over the other blocks b' ≠ b for which j is far (0 if there is none). Each block b >= 2
// splits its unit of attention in three, and a head's scores are the means over these blocks, so they add up to 1:
//   local    = Σ_{j near} P_b(j)                        position-dependent: a band along the diagonal
//   global   = Σ_{j far} min(P_b(j), P̄_b(j))            the same keys at any time: vertical lines
//   semantic = Σ_{j far} max(0, P_b(j) − P̄_b(j))        keys that matter to some blocks and then die
// Rows under `full`: attention_kind_<kind> for every (layer, KV head), and for the head with the largest score of each
// kind (ties: lower layer, then lower head) its map, pooled to at most `cells` × `cells`: attention_map_<kind>, one row
// for each range of query blocks, x = its index from the oldest, text = the attention that falls on each range of keys
// (oldest first, 3 significant digits, adding up to 1), value = their mean.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "harness/metrics/metric.h"
#include "harness/metrics/residents.h"
#include "kernels/check.h"

namespace kv {

namespace {

constexpr std::array<const char*, 3> kKinds = {"local", "global", "semantic"};
using Scores = std::array<double, 3>;

// P_b(j) of one (sequence, layer, KV head).
struct Map {
  int64_t block = 0;
  int64_t tokens = 0;
  std::vector<std::vector<float>> rows;  // [blocks][keys that the block can see]

  int64_t blocks() const { return static_cast<int64_t>(rows.size()); }
  int64_t far_keys(int64_t b) const { return std::max<int64_t>(0, (b - 1) * block); }
};

Scores classify(const Map& map) {
  std::vector<double> far_sum(static_cast<size_t>(map.tokens), 0);
  for (int64_t b = 2; b < map.blocks(); ++b) {
    for (size_t j = 0; j < static_cast<size_t>(map.far_keys(b)); ++j) far_sum[j] += map.rows[static_cast<size_t>(b)][j];
  }
  Scores scores{};
  for (int64_t b = 2; b < map.blocks(); ++b) {
    const auto& row = map.rows[static_cast<size_t>(b)];
    for (size_t j = 0; j < row.size(); ++j) {
      if (static_cast<int64_t>(j) >= map.far_keys(b)) {
        scores[0] += row[j];
        continue;
      }
      // Key j is far for the blocks from j / L + 2 on, this one among them.
      const int64_t others = map.blocks() - (static_cast<int64_t>(j) / map.block + 2) - 1;
      // The difference of sums may round to just below zero.
      const double mean = others > 0 ? std::max(0.0, (far_sum[j] - row[j]) / static_cast<double>(others)) : 0;
      const double lasting = std::min<double>(row[j], mean);
      scores[1] += lasting;
      scores[2] += row[j] - lasting;
    }
  }
  for (double& score : scores) score /= static_cast<double>(map.blocks() - 2);
  return scores;
}

// [cells, cells]: mean over the query blocks, sum over the keys that fall in a cell.
std::vector<std::vector<double>> pooled(const Map& map, int64_t limit) {
  const int64_t height = std::min(limit, map.blocks());
  const int64_t width = std::min(limit, map.tokens);
  std::vector<std::vector<double>> cells(static_cast<size_t>(height), std::vector<double>(static_cast<size_t>(width)));
  std::vector<int64_t> blocks(static_cast<size_t>(height), 0);
  for (int64_t b = 0; b < map.blocks(); ++b) {
    const size_t y = static_cast<size_t>(b * height / map.blocks());
    ++blocks[y];
    const auto& row = map.rows[static_cast<size_t>(b)];
    for (size_t j = 0; j < row.size(); ++j) {
      cells[y][static_cast<size_t>(static_cast<int64_t>(j) * width / map.tokens)] += row[j];
    }
  }
  for (size_t y = 0; y < cells.size(); ++y) {
    for (double& cell : cells[y]) cell /= static_cast<double>(blocks[y]);
  }
  return cells;
}

struct Best {
  int layer = -1;
  int head = -1;
  double score = 0;
};

class AttentionMaps : public Metric {
 public:
  explicit AttentionMaps(Params& params)
      : block_(params.get("block", 64, "query block of the map in tokens (the case may need a finer one)")),
        cells_(params.get("cells", 64, "largest height and width of a map")),
        maps_(params.get("maps", 1, "samples whose maps are written; every sample has scores")) {
    if (block_ < 1) params.fail("block", "expected at least 1");
    if (cells_ < 1) params.fail("cells", "expected at least 1");
  }

  ObserverNeeds observer_needs() const override {
    return {.baseline = {.statistics_block = block_, .block_sums = true}};
  }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.block_sums && view.baseline->has.statistics_block > 0);
    view_ = view;
    evicted_ = false;
  }

  void evicting(const EvictionView&) override { evicted_ = true; }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const int64_t length = view_.baseline->lengths[static_cast<size_t>(s)];
      if (evicted_) {
        rows.push_back({.sample = s, .metric = "attention_map", .skipped = "maps are those of the full cache"});
      } else if (length <= 2 * view_.baseline->has.statistics_block) {
        rows.push_back({.sample = s, .metric = "attention_map", .skipped = "the text is shorter than three blocks"});
      } else {
        report_sample(s, rows);
      }
    }
  }

 private:
  Map map_of(int s, int layer, int head) const {
    const Baseline& baseline = *view_.baseline;
    const Tensor& sums = baseline.layers[static_cast<size_t>(layer)].block_sums;
    const int64_t row = static_cast<int64_t>(s) * view_.batch.source->kv_heads + head;
    Map map{.block = baseline.has.statistics_block, .tokens = baseline.lengths[static_cast<size_t>(s)], .rows = {}};
    for (int64_t first = 0; first < map.tokens; first += map.block) {
      const int64_t end = std::min(map.tokens, first + map.block);
      const int64_t b = first / map.block;
      map.rows.push_back(
          to_host(*view_.batch.backend, sums.at((row * baseline.blocks + b) * baseline.max_tokens).as<float>(), end));
      for (float& value : map.rows.back()) value /= static_cast<float>(end - first);
    }
    return map;
  }

  void report_sample(int s, std::vector<Measured>& rows) const {
    const SourceInfo& source = *view_.batch.source;
    std::array<Best, 3> best;
    for (int layer = 0; layer < source.layers; ++layer) {
      const int number = source.layer_numbers[static_cast<size_t>(layer)];
      for (int head = 0; head < source.kv_heads; ++head) {
        const Scores scores = classify(map_of(s, layer, head));
        for (size_t kind = 0; kind < scores.size(); ++kind) {
          rows.push_back({.sample = s,
                          .layer = number,
                          .head = head,
                          .metric = fmt::format("attention_kind_{}", kKinds[kind]),
                          .value = scores[kind]});
          if (best[kind].head < 0 || scores[kind] > best[kind].score) best[kind] = {layer, head, scores[kind]};
        }
      }
    }
    if (view_.batch.sample_numbers[static_cast<size_t>(s)] >= maps_) return;
    for (size_t kind = 0; kind < best.size(); ++kind) report_map(s, kind, best[kind], rows);
  }

  void report_map(int s, size_t kind, const Best& best, std::vector<Measured>& rows) const {
    const auto cells = pooled(map_of(s, best.layer, best.head), cells_);
    for (size_t y = 0; y < cells.size(); ++y) {
      double sum = 0;
      std::string text;
      for (const double cell : cells[y]) {
        sum += cell;
        text += fmt::format("{}{:.3g}", text.empty() ? "" : " ", cell);
      }
      rows.push_back({.sample = s,
                      .layer = view_.batch.source->layer_numbers[static_cast<size_t>(best.layer)],
                      .head = best.head,
                      .x = static_cast<double>(y),
                      .metric = fmt::format("attention_map_{}", kKinds[kind]),
                      .value = sum / static_cast<double>(cells[y].size()),
                      .text = std::move(text)});
    }
  }

  int block_;
  int cells_;
  int maps_;
  CaseView view_;
  bool evicted_ = false;
};

const RegisterMetric kAttentionMaps{
    {.name = "attention_maps",
     .summary = "attention_kind_{local,global,semantic} of every head, in [0, 1], and attention_map_* of the clearest "
                "head of each kind; under `full` only (001 Fig. 1)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<AttentionMaps>(params); }}};

}  // namespace

}  // namespace kv
