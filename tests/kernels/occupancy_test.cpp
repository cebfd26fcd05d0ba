#include "kernels/occupancy.h"

#include <cmath>

#include "tests/ref/occupancy.h"
#include "tests/support/close.h"
#include "tests/support/threads.h"
#include "tests/support/token_block.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Occupancy);

// Lengths around those of blocks, in any order and with gaps, and around those where a GPU has a level of longer blocks
// more (kernels/cuda/occupancy.cu).
const std::vector<ref::TokenBlock> kShapes = {
    {{}, 1, 0, 2},
    {{{.first_token = 0, .count = 1}}, 1, 1, 1},
    {{{.first_token = 70, .count = 63},
      {.first_token = 1, .count = 65},
      {.first_token = 5, .count = 0},
      {.first_token = 200, .count = 193},
      {.first_token = 134, .count = 64}},
     2,
     395,
     3},
    {{{.count = 128}, {.first_token = 128, .count = 127}}, 1, 255, 2},
    {{{.count = 129}}, 1, 129, 1},
    {{{.count = 256}, {.first_token = 256, .count = 255}}, 1, 511, 1},
    {{{.count = 257}}, 2, 257, 2},
    {{{.count = 512}}, 1, 512, 1},
    {{{.first_token = 1, .count = 513}, {.first_token = 520, .count = 70}}, 1, 600, 1},
    {{{.first_token = 2, .count = 4163}, {.first_token = 4165, .count = 130}}, 1, 4295, 1},
};

// The occupancies and their slopes lie alike.
int64_t count_of(const ref::TokenBlock& shape, OccupancyOf of) {
  return of == OccupancyOf::kEachHead ? shape.layers * shape.tokens * shape.heads : shape.tokens;
}

// From hardly any forgetting to all at once, β = 1 − 1e-8 to 5e-5; NaN where no sequence is.
std::vector<float> rates_of(const ref::TokenBlock& shape) {
  const std::vector<float> random = ref::random_values(count_of(shape, OccupancyOf::kEachHead), 1);
  std::vector<float> rates(random.size(), NAN);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const Segment& segment : shape.segments) {
      const int64_t first = (layer * shape.tokens + segment.first_token) * shape.heads;
      for (int64_t at = first; at < first + int64_t{segment.count} * shape.heads; ++at) {
        rates[at] = -std::pow(10.0F, -3.5F + 4.5F * random[at]);
      }
    }
  }
  return rates;
}

// One head's numbers of a segment.
std::vector<float> of_head(const ref::TokenBlock& shape, const std::vector<float>& all, int64_t layer,
                           const Segment& segment, int64_t head) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < segment.count; ++i) {
    numbers.push_back(all[(layer * shape.tokens + segment.first_token + i) * shape.heads + head]);
  }
  return numbers;
}

std::vector<float> of_segment(const std::vector<float>& all, const Segment& segment) {
  return ref::slice(all, segment.first_token, segment.count);
}

// Both add to `start` in every place.
std::vector<float> occupancy(Backend& backend, const ref::TokenBlock& shape, const std::vector<float>& rates,
                             OccupancyOf of, float start) {
  const ref::UploadedBlock uploaded(backend, shape);
  Tensor log_beta = ref::upload_array(backend, rates);
  Tensor sums = ref::upload_array(backend, std::vector<float>(count_of(shape, of), start));
  backend.occupancy({.shape = uploaded.shape(),
                     .log_beta = ref::data_of<float>(log_beta),
                     .of = of,
                     .occupancy = ref::data_of<float>(sums)});
  return ref::download_array<float>(sums);
}

std::vector<float> backward(Backend& backend, const ref::TokenBlock& shape, const std::vector<float>& rates,
                            OccupancyOf of, const std::vector<float>& slopes, float start) {
  const ref::UploadedBlock uploaded(backend, shape);
  Tensor log_beta = ref::upload_array(backend, rates), by = ref::upload_array(backend, slopes);
  Tensor gradient = ref::upload_array(backend, std::vector<float>(rates.size(), start));
  backend.occupancy_backward({.shape = uploaded.shape(),
                              .log_beta = ref::data_of<float>(log_beta),
                              .of = of,
                              .slopes = ref::data_of<float>(by),
                              .gradient = ref::data_of<float>(gradient)});
  return ref::download_array<float>(gradient);
}

// A sum over `count` tokens is one of up to 64 terms a block, and of the blocks; a term is off by 8 roundings of its
// two powers and of what it is multiplied with. Then it is added to the start.
double roundings(int64_t count) { return 64 + static_cast<double>(count) / 64 + 8; }

// Only the places of segments may have changed.
void expect_gaps(const ref::TokenBlock& shape, const std::vector<float>& got, int64_t width, float start) {
  std::vector<uint8_t> held(shape.tokens);
  for (const Segment& segment : shape.segments) {
    std::fill_n(held.begin() + segment.first_token, segment.count, uint8_t{1});
  }
  for (int64_t at = 0; at < std::ssize(got); ++at) {
    if (held[at / width % shape.tokens]) continue;
    ASSERT_EQ(got[at], start) << "place " << at;
  }
}

TEST_P(Occupancy, OfHalvesIsWhatTheirPowersAddUpTo) {
  KV_BACKEND_OR_SKIP(backend);
  // Two heads: one halves at every token, the other keeps all: 1, 1 + 1/2, 1 + 1/2 + 1/4 and 1, 2, 3.
  const auto half = static_cast<float>(std::log(0.5));
  const ref::TokenBlock shape{{{.count = 3}}, 1, 3, 2};
  const std::vector<float> rates = {half, 0, half, 0, half, 0};
  ref::expect_close(occupancy(*backend, shape, rates, OccupancyOf::kEachHead, 0),
                    std::vector<double>{1, 1, 1.5, 2, 1.75, 3}, {.roundings = 4, .magnitude = 3});
  ref::expect_close(occupancy(*backend, shape, rates, OccupancyOf::kAllHeads, 0), std::vector<double>{2, 3.5, 4.75},
                    {.roundings = 4, .magnitude = 4.75});
}

TEST_P(Occupancy, OfEachHeadAgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kStart = 0.25F;
  for (const ref::TokenBlock& shape : kShapes) {
    const std::vector<float> rates = rates_of(shape);
    const std::vector<float> got = occupancy(*backend, shape, rates, OccupancyOf::kEachHead, kStart);
    expect_gaps(shape, got, shape.heads, kStart);
    for (int64_t plane = 0; plane < shape.layers * shape.heads; ++plane) {
      for (const Segment& segment : shape.segments) {
        const int64_t layer = plane / shape.heads, head = plane % shape.heads;
        const ref::Occupancy want = ref::occupancy(of_head(shape, rates, layer, segment, head));
        const std::vector<float> sums = of_head(shape, got, layer, segment, head);
        for (int64_t t = 0; t < segment.count; ++t) {
          ASSERT_TRUE(ref::is_close(sums[t], kStart + want.values[t],
                                    {.roundings = roundings(segment.count), .magnitude = 1 + want.magnitudes[t]}))
              << "token " << t << " of " << segment.count;
        }
      }
    }
  }
}

TEST_P(Occupancy, OfAllHeadsIsTheirSum) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kStart = 2;
  for (const ref::TokenBlock& shape : kShapes) {
    const std::vector<float> rates = rates_of(shape);
    const std::vector<float> got = occupancy(*backend, shape, rates, OccupancyOf::kAllHeads, kStart);
    expect_gaps(shape, got, 1, kStart);
    for (const Segment& segment : shape.segments) {
      std::vector<double> want(segment.count, kStart), magnitudes = want;
      for (int64_t plane = 0; plane < shape.layers * shape.heads; ++plane) {
        const ref::Occupancy own =
            ref::occupancy(of_head(shape, rates, plane / shape.heads, segment, plane % shape.heads));
        for (int64_t t = 0; t < segment.count; ++t) {
          want[t] += own.values[t];
          magnitudes[t] += own.magnitudes[t];
        }
      }
      for (int64_t t = 0; t < segment.count; ++t) {
        ASSERT_TRUE(ref::is_close(got[segment.first_token + t], want[t],
                                  {.roundings = roundings(segment.count), .magnitude = magnitudes[t]}));
      }
    }
  }
}

TEST_P(Occupancy, TellsRatesNearOneApart) {
  KV_BACKEND_OR_SKIP(backend);
  // β = 1 − 1.5e-8, a gate's before it has learned, is 1 in f32: over 6000 tokens S falls short of the count by
  // 1.5e-8 · 6000² / 2 = 0.27, where roundings may cost 0.12.
  const ref::TokenBlock shape{{{.count = 6000}}, 1, 6000, 1};
  const std::vector<float> rates(6000, -1.5e-8F);
  const std::vector<float> got = occupancy(*backend, shape, rates, OccupancyOf::kEachHead, 0);
  const double want_last = ref::occupancy(rates).values.back();
  const ref::Tolerance rounding{.roundings = roundings(6000), .magnitude = 6000};
  ASSERT_GT(6000 - want_last, 2 * rounding.allowed());
  ref::expect_close(got.back(), want_last, rounding);
  // And it is told which way to go, though β hardly moves: Σ_t (t − i).
  const std::vector<float> slopes(6000, 1.0F);
  const std::vector<float> gradient = backward(*backend, shape, rates, OccupancyOf::kEachHead, slopes, 0);
  const ref::Occupancy want = ref::occupancy_gradient(rates, slopes);
  ref::expect_close(gradient[0], want.values[0], {.roundings = roundings(6000), .magnitude = want.magnitudes[0]});
}

TEST_P(Occupancy, BackwardAgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr float kStart = 0.5F;
  for (const ref::TokenBlock& shape : kShapes) {
    const std::vector<float> rates = rates_of(shape);
    for (const OccupancyOf of : {OccupancyOf::kEachHead, OccupancyOf::kAllHeads}) {
      std::vector<float> slopes = ref::random_values(count_of(shape, of), 3);
      const std::vector<float> got = backward(*backend, shape, rates, of, slopes, kStart);
      expect_gaps(shape, got, shape.heads, kStart);
      for (int64_t plane = 0; plane < shape.layers * shape.heads; ++plane) {
        for (const Segment& segment : shape.segments) {
          const int64_t layer = plane / shape.heads, head = plane % shape.heads;
          const ref::Occupancy want =
              ref::occupancy_gradient(of_head(shape, rates, layer, segment, head),
                                      of == OccupancyOf::kEachHead ? of_head(shape, slopes, layer, segment, head)
                                                                   : of_segment(slopes, segment));
          const std::vector<float> gradient = of_head(shape, got, layer, segment, head);
          for (int64_t i = 0; i < segment.count; ++i) {
            ASSERT_TRUE(ref::is_close(gradient[i], kStart + want.values[i],
                                      {.roundings = roundings(segment.count), .magnitude = 1 + want.magnitudes[i]}))
                << "token " << i << " of " << segment.count;
          }
        }
      }
    }
  }
}

TEST_P(Occupancy, BackwardIsTheSlopeOfTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::TokenBlock shape{{{.count = 150}}, 1, 150, 1};
  const std::vector<float> rates = rates_of(shape), slopes = ref::random_values(150, 5);
  const std::vector<float> got = backward(*backend, shape, rates, OccupancyOf::kEachHead, slopes, 0);
  const ref::Occupancy bound = ref::occupancy_gradient(rates, slopes);
  for (const size_t i : {0, 1, 62, 63, 64, 65, 100, 148, 149}) {
    std::vector<float> ahead = rates, behind = rates;
    ahead[i] += 0x1p-16F;
    behind[i] -= 0x1p-16F;
    const double step = double{ahead[i]} - behind[i];
    const std::vector<double> above = ref::occupancy(ahead).values, below = ref::occupancy(behind).values;
    double slope = 0;
    for (size_t t = 0; t < slopes.size(); ++t) slope += slopes[t] * (above[t] - below[t]) / step;
    // The quotient is off by step² / 24 of the third derivative, which is at most 150² times the first.
    const double curvature = step * step / 24 * 150 * 150 * bound.magnitudes[i];
    const ref::Tolerance rounding{.roundings = roundings(150), .magnitude = bound.magnitudes[i]};
    EXPECT_NEAR(got[i], slope, curvature + rounding.allowed());
  }
}

TEST_P(Occupancy, ThreadsDoNotChangeABit) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::TokenBlock& shape = kShapes[2];
  const std::vector<float> rates = rates_of(shape);
  for (const OccupancyOf of : {OccupancyOf::kEachHead, OccupancyOf::kAllHeads}) {
    const std::vector<float> slopes = ref::random_values(count_of(shape, of), 3);
    const auto both = [&](int threads) {
      const ref::Threads limit(threads);
      return std::pair(occupancy(*backend, shape, rates, of, 1), backward(*backend, shape, rates, of, slopes, 1));
    };
    EXPECT_EQ(both(1), both(2));
  }
}

}  // namespace
}  // namespace kv
