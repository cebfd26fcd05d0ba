#include "kernels/find_bad.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ref/find_bad.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, FindBad);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// A word of the backend, as fresh memory is.
class Word {
 public:
  explicit Word(Backend& backend) : memory_(backend, DType::kU8, sizeof(uint64_t)) {}
  uint64_t* data() { return reinterpret_cast<uint64_t*>(ref::data_of<uint8_t>(memory_)); }
  uint64_t read() const {
    uint64_t number = 0;
    memory_.download(&number, sizeof(number));
    return number;
  }

 private:
  Tensor memory_;
};

struct Scores {
  std::vector<int32_t> lengths;
  int64_t pitch = 0;
  std::vector<float> values = {};  // [rows, pitch]; empty: finite at [0, length), NaN beyond
  std::vector<float> ties = {};
  int32_t sinks = 0;
  int32_t recent = 0;
  std::vector<uint8_t> due = {};
  int position_gap = 1;
  uint64_t number = 0;

  size_t at(size_t row, int64_t slot) const { return row * static_cast<size_t>(pitch) + static_cast<size_t>(slot); }
  std::vector<float> finite() const {
    std::vector<float> scores(lengths.size() * static_cast<size_t>(pitch), NAN);
    for (size_t row = 0; row < lengths.size(); ++row) {
      for (int64_t slot = 0; slot < lengths[row]; ++slot) scores[at(row, slot)] = slot % 2 ? -kLargest : 1e-40f;
    }
    return scores;
  }
};

void look(Backend& backend, const Scores& c, Word& word) {
  const ref::PagedCache cache(backend, ref::random_rows(c.lengths, 1, 16, 1, 0, c.position_gap));
  Tensor scores = ref::upload_array(backend, c.values), ties = ref::upload_array(backend, c.ties);
  Tensor due = ref::upload_array(backend, c.due);
  backend.find_bad_score({.cache = cache.view(),
                          .scores = scores.slots<float>(c.pitch),
                          .ties = c.ties.empty() ? Slots<float>{} : ties.slots<float>(c.pitch),
                          .sinks = c.sinks,
                          .recent = c.recent,
                          .rows_due = c.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                          .number = c.number,
                          .first = word.data()});
  backend.synchronize();
}

uint64_t found(Backend& backend, const Scores& c) {
  Word word(backend);
  look(backend, c, word);
  return word.read();
}

uint64_t expected(const Scores& c) {
  for (size_t row = 0; row < c.lengths.size(); ++row) {
    if (!c.due.empty() && !c.due[row]) continue;
    std::vector<int32_t> positions;
    for (int32_t slot = 0; slot < c.lengths[row]; ++slot) positions.push_back(slot * c.position_gap);
    const auto row_of = [&](const std::vector<float>& all) {
      return all.empty() ? all : ref::slice(all, static_cast<int64_t>(c.at(row, 0)), c.lengths[row]);
    };
    const int64_t slot = ref::first_bad_score(row_of(c.values), row_of(c.ties), positions, c.sinks, c.recent);
    if (slot >= 0) return c.number + c.at(row, slot);
  }
  return kNothingBad;
}

TEST_P(FindBad, TheFirstScoreInTheOrderOfRowsAndSlotsCounts) {
  KV_BACKEND_OR_SKIP(backend);
  Scores c{.lengths = {3, 0, 4}, .pitch = 5};
  c.values = c.finite();
  EXPECT_EQ(found(*backend, c), kNothingBad);
  c.values[c.at(2, 3)] = NAN;
  EXPECT_EQ(found(*backend, c), 13u);
  c.values[c.at(2, 1)] = -kInfinity;
  EXPECT_EQ(found(*backend, c), 11u);
  c.values[c.at(0, 2)] = kInfinity;
  EXPECT_EQ(found(*backend, c), 2u);
  c.number = 100;
  EXPECT_EQ(found(*backend, c), 102u);
  c.due = {0, 1, 1};
  EXPECT_EQ(found(*backend, c), 111u);
  c.due = {0, 1, 0};
  EXPECT_EQ(found(*backend, c), kNothingBad);
}

TEST_P(FindBad, ProtectedScoresAreNotRead) {
  KV_BACKEND_OR_SKIP(backend);
  // Positions 0, 3, 6, 9, 12: two of them are below 4.
  Scores c{.lengths = {5}, .pitch = 5, .values = {NAN, NAN, 1, NAN, NAN}, .sinks = 4, .recent = 2, .position_gap = 3};
  EXPECT_EQ(found(*backend, c), kNothingBad);
  c.recent = 1;
  EXPECT_EQ(found(*backend, c), 3u);
  c.sinks = 3;
  EXPECT_EQ(found(*backend, c), 1u);
  c.recent = 9;  // more than there are
  EXPECT_EQ(found(*backend, c), kNothingBad);
}

TEST_P(FindBad, TiesAreLookedAtWithTheirScores) {
  KV_BACKEND_OR_SKIP(backend);
  Scores c{.lengths = {3}, .pitch = 3, .values = {1, 2, NAN}, .ties = {1, -kInfinity, 3}};
  EXPECT_EQ(found(*backend, c), 1u);
  c.ties = {1, 2, 3};
  EXPECT_EQ(found(*backend, c), 2u);
  c.recent = 1;
  EXPECT_EQ(found(*backend, c), kNothingBad);
}

TEST_P(FindBad, CallsThatShareAWordLowerIt) {
  KV_BACKEND_OR_SKIP(backend);
  Scores layer{.lengths = {2, 2}, .pitch = 2, .values = {1, NAN, 1, 1}};
  Word word(*backend);
  layer.number = 40;
  look(*backend, layer, word);
  EXPECT_EQ(word.read(), 41u);
  layer.number = 44;
  look(*backend, layer, word);
  EXPECT_EQ(word.read(), 41u);
  layer.number = 0;
  look(*backend, layer, word);
  EXPECT_EQ(word.read(), 1u);
}

// Lengths around the tiles of a thread block, one bad entry at each place that matters.
TEST_P(FindBad, EveryPlaceOfLongRowsIsSeen) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int32_t length : {1, 15, 17, 255, 256, 257, 2047, 2048, 2049, 5000}) {
    for (const int32_t slot : {0, 1, 31, 32, 255, 256, 2046, 2047, 2048, 4095, 4999, length - 1}) {
      if (slot >= length) continue;
      Scores c{.lengths = {7, length, 0, 3}, .pitch = length + 3, .sinks = 1, .recent = 1};
      if (c.pitch < 7) c.lengths[0] = 1;
      if (c.pitch < 5) c.lengths[3] = 0;
      c.values = c.finite();
      c.values[c.at(1, slot)] = slot % 2 ? NAN : kInfinity;
      EXPECT_EQ(found(*backend, c), expected(c)) << length << " " << slot;
    }
  }
}

TEST_P(FindBad, DrawnScoresAgreeWithTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Scores c{.lengths = {40, 0, 17, 33, 1}, .pitch = 41, .sinks = int32_t(seed % 5), .recent = int32_t(seed % 7)};
    c.values = c.finite();
    c.ties = c.finite();
    const std::vector<float> draws = ref::random_values(c.values.size(), seed);
    for (size_t i = 0; i < draws.size(); ++i) {
      if (draws[i] > 0.97f) c.values[i] = NAN;
      if (draws[i] < -0.99f) c.ties[i] = -kInfinity;
    }
    if (seed % 3 == 0) c.due = {uint8_t(seed % 2), 1, 0, 1, 1};
    EXPECT_EQ(found(*backend, c), expected(c)) << seed;
  }
}

TEST_P(FindBad, ValuesOfPlainTensorsAreAllSeen) {
  KV_BACKEND_OR_SKIP(backend);
  const auto number_of = [&](ConstRef values, int64_t count, uint64_t number) {
    Word word(*backend);
    backend->find_bad_value({.values = values, .count = count, .number = number, .first = word.data()});
    return word.read();
  };
  for (const int64_t count : {int64_t{1}, int64_t{255}, int64_t{257}, int64_t{70000}}) {
    std::vector<float> values(static_cast<size_t>(count), 1.0f);
    EXPECT_EQ(number_of(ref::upload_array(*backend, values).ref(), count, 5), kNothingBad);
    EXPECT_EQ(number_of(ref::upload_activations(*backend, values).ref(), count, 5), kNothingBad);
    for (const float bad : {NAN, kInfinity, -kInfinity}) {
      values[static_cast<size_t>(count - 1)] = bad;
      EXPECT_EQ(number_of(ref::upload_array(*backend, values).ref(), count, 5), 5u + static_cast<uint64_t>(count) - 1);
      EXPECT_EQ(number_of(ref::upload_activations(*backend, values).ref(), count, 0), static_cast<uint64_t>(count) - 1);
      // What lies beyond is not read.
      EXPECT_EQ(number_of(ref::upload_array(*backend, values).ref(), count - 1, 0), kNothingBad);
    }
    values[static_cast<size_t>(count / 2)] = -kInfinity;
    EXPECT_EQ(number_of(ref::upload_array(*backend, values).ref(), count, 0), static_cast<uint64_t>(count) / 2);
  }
}

}  // namespace
}  // namespace kv
