#include "kernels/select_pooled.h"

#include <cmath>
#include <memory>

#include "tests/ref/select_pooled.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, SelectPooled);

using Keep = std::vector<uint8_t>;
constexpr uint8_t kUntouched = 0xFF;

struct Layer {
  ref::CacheRows rows;
  std::vector<float> scores;        // [rows, pitch]
  std::vector<float> ties = {};     // as scores, or empty
  std::vector<int32_t> least = {};  // [rows], or empty
};

struct Case {
  std::vector<Layer> layers;
  std::vector<int32_t> counts;
  int32_t sinks = 0;
  int32_t recent = 0;
  std::vector<uint8_t> due = {};  // empty: all
};

struct Selected {
  std::vector<Keep> keep;  // a layer [rows, pitch]
  std::vector<std::vector<int32_t>> kept;
};

// What the backend holds of one layer.
struct Held {
  Held(Backend& backend, const Layer& layer)
      : cache(backend, layer.rows, 1),
        scores(ref::upload_array(backend, layer.scores)),
        ties(ref::upload_array(backend, layer.ties)),
        least(ref::upload_array(backend, layer.least)),
        keep(backend, DType::kU8, static_cast<int64_t>(layer.scores.size())),
        kept(backend, DType::kI32, layer.rows.rows()) {}

  ref::PagedCache cache;
  Tensor scores, ties, least, keep, kept;
};

Selected select_pooled(Backend& backend, const Case& c) {
  std::vector<std::unique_ptr<Held>> held;
  std::vector<SelectPooledArgs::Layer> layers;
  for (const Layer& layer : c.layers) {
    Held& h = *held.emplace_back(std::make_unique<Held>(backend, layer));
    const int64_t pitch = h.keep.elements() / layer.rows.rows();
    layers.push_back({.cache = h.cache.view(),
                      .scores = h.scores.slots<float>(pitch),
                      .ties = layer.ties.empty() ? Slots<float>{} : h.ties.slots<float>(pitch),
                      .least = layer.least.empty() ? nullptr : ref::data_of<int32_t>(h.least),
                      .keep = h.keep.slots<uint8_t>(pitch),
                      .kept = ref::data_of<int32_t>(h.kept)});
  }
  Tensor counts = ref::upload_array(backend, c.counts), due = ref::upload_array(backend, c.due);
  backend.select_pooled({.layers = layers.data(),
                         .layer_count = static_cast<int64_t>(layers.size()),
                         .counts = ref::data_of<int32_t>(counts),
                         .sinks = c.sinks,
                         .recent = c.recent,
                         .rows_due = c.due.empty() ? nullptr : ref::data_of<uint8_t>(due)});
  backend.synchronize();
  Selected selected;
  for (const auto& h : held) {
    selected.keep.push_back(ref::download_array<uint8_t>(h->keep));
    selected.kept.push_back(ref::download_array<int32_t>(h->kept));
  }
  return selected;
}

// One sequence whose rows are equally long; scores [rows, length].
Layer layer_of(std::vector<float> scores, int kv_heads) {
  const auto length = static_cast<int32_t>(scores.size()) / kv_heads;
  return {ref::random_rows(std::vector<int32_t>(static_cast<size_t>(kv_heads), length), kv_heads, 16, 1),
          std::move(scores)};
}

TEST_P(SelectPooled, KeepsTheHighestScoresOfAllHeadsAndLayers) {
  KV_BACKEND_OR_SKIP(backend);
  const Selected got = select_pooled(
      *backend, {.layers = {layer_of({3, -1, 4, 9, 8, 7}, 2), layer_of({5, -2, 0, -3, -4, -5}, 2)}, .counts = {5}});
  EXPECT_EQ(got.keep, (std::vector<Keep>{{0, 0, 1, 1, 1, 1}, {1, 0, 0, 0, 0, 0}}));
  EXPECT_EQ(got.kept, (std::vector<std::vector<int32_t>>{{1, 3}, {1, 0}}));
}

TEST_P(SelectPooled, BreaksEqualScoresByTieThenPositionThenHeadThenLayer) {
  KV_BACKEND_OR_SKIP(backend);
  Case c{.layers = {layer_of({1, 1, 1, 1}, 2), layer_of({1, 1, 1, -0.0f}, 2)}, .counts = {1}};
  // The newest entries of head 0, layer 0 first; then head 0 of layer 1, and head 1 of layer 0; then older ones.
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{0, 1, 0, 0}, {0, 0, 0, 0}}));
  c.counts = {2};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{0, 1, 0, 0}, {0, 1, 0, 0}}));
  c.counts = {3};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{0, 1, 0, 1}, {0, 1, 0, 0}}));
  c.counts = {5};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{1, 1, 0, 1}, {1, 1, 0, 0}}));
  c.counts = {7};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{1, 1, 1, 1}, {1, 1, 1, 0}}));
  c.layers[0].ties = {0, 0, 0, 0};
  c.layers[1].ties = {0, 0, 5, 0};
  c.counts = {1};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{0, 0, 0, 0}, {0, 0, 1, 0}}));
}

TEST_P(SelectPooled, SparesSinksAndRecentsOfEveryRowWithoutReadingTheirScores) {
  KV_BACKEND_OR_SKIP(backend);
  const Case c{.layers = {layer_of({NAN, 1, 7, NAN, NAN, 9, 8, NAN}, 2)}, .counts = {6}, .sinks = 1, .recent = 1};
  EXPECT_EQ(select_pooled(*backend, c).keep, (std::vector<Keep>{{1, 0, 0, 1, 1, 1, 1, 1}}));
}

TEST_P(SelectPooled, LeavesEveryRowItsLeast) {
  KV_BACKEND_OR_SKIP(backend);
  Case c{.layers = {layer_of({1, 2, 3, 7, 8, 9}, 2)}, .counts = {4}};
  c.layers[0].least = {2, 0};
  const Selected got = select_pooled(*backend, c);
  EXPECT_EQ(got.keep, (std::vector<Keep>{{0, 1, 1, 0, 1, 1}}));
  EXPECT_EQ(got.kept, (std::vector<std::vector<int32_t>>{{2, 2}}));
}

TEST_P(SelectPooled, KeepsAllWhereTheCountIsAtLeastTheEntries) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int32_t count : {6, 99}) {
    const Selected got = select_pooled(*backend, {.layers = {layer_of({1, 2, 3, 4, 5, 6}, 2)}, .counts = {count}});
    EXPECT_EQ(got.keep, (std::vector<Keep>{Keep(6, 1)}));
    EXPECT_EQ(got.kept, (std::vector<std::vector<int32_t>>{{3, 3}}));
  }
}

struct Ragged {
  int layers;
  int kv_heads;
  bool with_ties;
  bool with_least;
  int values;  // how many distinct scores
};

Case ragged_case(const Ragged& of, int32_t sinks, int32_t recent) {
  // Rows of three sequences; positions are spread out, so a sink is a matter of position and not of slot.
  const std::vector<int32_t> lengths = {1, 0, 17, 300, 64, 16, 1025, 33};
  Case c{.layers = {}, .counts = {}, .sinks = sinks, .recent = recent};
  const int rows = 3 * of.kv_heads;
  for (int l = 0; l < of.layers; ++l) {
    std::vector<int32_t> of_layer;
    for (int row = 0; row < rows; ++row) of_layer.push_back(lengths[static_cast<size_t>(row * 3 + l) % lengths.size()]);
    const int64_t pitch = 1027 + l;
    Layer layer{ref::random_rows(of_layer, of.kv_heads, 16, 1, 0, 3),
                ref::random_values(static_cast<size_t>(rows * pitch), 5 + l)};
    for (float& score : layer.scores) score = std::floor(score * static_cast<float>(of.values)) / 4;
    if (of.with_ties) {
      layer.ties = ref::random_values(layer.scores.size(), 50 + l);
      for (float& tie : layer.ties) tie = std::floor(tie * 3);
    }
    if (of.with_least) {
      for (int row = 0; row < rows; ++row) layer.least.push_back(row * 7 % 40);
    }
    c.layers.push_back(std::move(layer));
  }
  return c;
}

std::vector<ref::PooledRow> rows_of(const Case& c, int sequence) {
  std::vector<ref::PooledRow> rows;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const Layer& layer = c.layers[l];
    const int64_t pitch = static_cast<int64_t>(layer.scores.size()) / layer.rows.rows();
    for (int head = 0; head < layer.rows.kv_heads; ++head) {
      const int64_t row = sequence * layer.rows.kv_heads + head, length = layer.rows.length(row);
      rows.push_back({.layer = static_cast<int>(l),
                      .head = head,
                      .scores = ref::slice(layer.scores, row * pitch, length),
                      .ties = layer.ties.empty() ? std::vector<float>{} : ref::slice(layer.ties, row * pitch, length),
                      .positions = layer.rows.positions[row],
                      .least = layer.least.empty() ? 0 : layer.least[row]});
    }
  }
  return rows;
}

void expect_as_sorted(Backend& backend, const Case& c) {
  const Selected got = select_pooled(backend, c);
  const int kv_heads = c.layers[0].rows.kv_heads;
  for (int sequence = 0; sequence < static_cast<int>(c.counts.size()); ++sequence) {
    const std::vector<ref::PooledRow> rows = rows_of(c, sequence);
    const std::vector<Keep> want = ref::select_pooled(rows, c.counts[sequence], c.sinks, c.recent);
    for (size_t r = 0; r < rows.size(); ++r) {
      const Keep& keep = got.keep[rows[r].layer];
      const int64_t row = sequence * kv_heads + rows[r].head, length = static_cast<int64_t>(want[r].size());
      const int64_t pitch = static_cast<int64_t>(keep.size()) / c.layers[0].rows.rows();
      const bool due = c.due.empty() || c.due[row];
      ASSERT_EQ(ref::slice(keep, row * pitch, length), due ? want[r] : Keep(length, kUntouched))
          << "sequence " << sequence << " layer " << rows[r].layer << " head " << rows[r].head;
      ASSERT_EQ(ref::slice(keep, row * pitch + length, pitch - length), Keep(pitch - length, kUntouched));
      if (due) {
        ASSERT_EQ(got.kept[rows[r].layer][row], std::count(want[r].begin(), want[r].end(), 1));
      }
    }
  }
}

TEST_P(SelectPooled, AgreesWithAFullSortOfTheDocumentedOrder) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<Ragged> shapes = {{1, 1, false, false, 1 << 20},
                                      {1, 2, true, false, 3},
                                      {3, 2, false, true, 3},
                                      {2, 3, true, true, 1},
                                      {3, 1, false, false, 1}};
  for (const Ragged& shape : shapes) {
    for (const int32_t spared : {0, 2}) {
      Case c = ragged_case(shape, 3 * spared, spared);
      // Shares from what the rows keep as their own to more than there is.
      for (const double share : {0.0, 0.01, 0.3, 0.9, 1.1}) {
        c.counts.clear();
        for (int sequence = 0; sequence < 3; ++sequence) {
          int64_t spared_total = 0, entries = 0;
          for (const ref::PooledRow& row : rows_of(c, sequence)) {
            const auto length = static_cast<int64_t>(row.positions.size());
            spared_total += std::min<int64_t>(length, std::max(2 * spared, row.least));
            entries += length;
          }
          c.counts.push_back(static_cast<int32_t>(
              std::max<double>(static_cast<double>(spared_total), share * static_cast<double>(entries))));
        }
        SCOPED_TRACE(::testing::Message() << shape.layers << " layers, " << shape.kv_heads << " heads, spared "
                                          << spared << ", share " << share);
        expect_as_sorted(*backend, c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SelectPooled, LeavesSequencesThatAreNotDueAlone) {
  KV_BACKEND_OR_SKIP(backend);
  Case c = ragged_case({2, 2, true, false, 3}, 0, 1);
  c.counts = {40, 50, 60};
  c.due = {0, 0, 1, 1, 0, 0};
  expect_as_sorted(*backend, c);
}

TEST(SelectPooledDeathTest, StopsWhereTheCountIsLessThanTheRowsKeepAsTheirOwn) {
  const auto backend = ref::try_backend("cpu");
  EXPECT_DEATH(select_pooled(*backend, {.layers = {layer_of({1, 2, 3, 4}, 2)}, .counts = {1}, .recent = 1}),
               "internal error");
}

}  // namespace
}  // namespace kv
