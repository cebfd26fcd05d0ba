#include "kernels/expiry.h"

#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Expiry);

constexpr int32_t kNever = kNeverExpires;

// Tokens 0 to 3 of one sequence and 7 to 8 of another, packed the other way round; two KV heads.
struct Tokens {
  explicit Tokens(Backend& backend)
      : words(ref::upload_segments(backend, {{1, 0, 2, 7}, {0, 2, 4, 0}})), expires(backend, DType::kI32, 6 * 2) {}
  ExpiryArgs args() {
    return {.segments = ref::segments_of(words),
            .segment_count = 2,
            .max_count = 4,
            .kv_heads = 2,
            .window = 5,
            .expires = ref::data_of<int32_t>(expires)};
  }
  std::vector<int32_t> of(Backend& backend, const ExpiryArgs& args) {
    backend.expiry(args);
    return ref::download_array<int32_t>(expires);
  }
  Tensor words, expires;
};

TEST_P(Expiry, IsAWindowBehindThePositionButForTheFirstTokens) {
  KV_BACKEND_OR_SKIP(backend);
  Tokens tokens(*backend);
  ExpiryArgs args = tokens.args();
  EXPECT_EQ(tokens.of(*backend, args), (std::vector<int32_t>{12, 12, 13, 13, 5, 5, 6, 6, 7, 7, 8, 8}));
  args.sinks = 3;
  EXPECT_EQ(tokens.of(*backend, args),
            (std::vector<int32_t>{12, 12, 13, 13, kNever, kNever, kNever, kNever, kNever, kNever, 8, 8}));
}

// A window that ends beyond all positions does not come round again: 7 + INT_MAX is no position, 0 + INT_MAX is never.
TEST_P(Expiry, OfAWindowBeyondAllPositionsIsNever) {
  KV_BACKEND_OR_SKIP(backend);
  Tokens tokens(*backend);
  ExpiryArgs args = tokens.args();
  args.window = std::numeric_limits<int>::max();
  EXPECT_EQ(tokens.of(*backend, args), std::vector<int32_t>(12, kNever));
  args.window -= 7;
  EXPECT_EQ(tokens.of(*backend, args),
            (std::vector<int32_t>{kNever, kNever, kNever, kNever, kNever - 7, kNever - 7, kNever - 6, kNever - 6,
                                  kNever - 5, kNever - 5, kNever - 4, kNever - 4}));
}

TEST_P(Expiry, NeverComesToAnAdmittedHeadOrGate) {
  KV_BACKEND_OR_SKIP(backend);
  Tokens tokens(*backend);
  ExpiryArgs args = tokens.args();
  Tensor heads = ref::upload_array(*backend, std::vector<uint8_t>{0, 1});
  args.heads_admitted = ref::data_of<uint8_t>(heads);
  EXPECT_EQ(tokens.of(*backend, args),
            (std::vector<int32_t>{12, kNever, 13, kNever, 5, kNever, 6, kNever, 7, kNever, 8, kNever}));
  args.heads_admitted = nullptr;
  args.threshold = 0.5F;
  // One that equals the threshold, and NaN, admit nothing.
  Tensor gates = ref::upload_array(*backend, std::vector<float>{0.6F, 0.5F, 0, 1, NAN, 0.51F, 0, 0, 1, 0, 0, 0});
  args.gates = ref::data_of<float>(gates);
  EXPECT_EQ(tokens.of(*backend, args),
            (std::vector<int32_t>{kNever, 12, 13, kNever, 5, kNever, 6, 6, kNever, 7, 8, 8}));
}

// The draw takes the gates' place, knows sample, head and position, and turns away about its share.
TEST_P(Expiry, IsDrawnWhereAShareIsToBeDropped) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kCount = 4000, kHeads = 2;
  Tensor words = ref::upload_segments(*backend, {{0, 0, kCount, 10}});
  Tensor expires(*backend, DType::kI32, kCount * kHeads);
  Tensor gates = ref::upload_array(*backend, std::vector<float>(kCount * kHeads, 1.0F));
  Tensor numbers = ref::upload_array(*backend, std::vector<int32_t>{3});
  Tensor first_heads = ref::upload_array(*backend, std::vector<int32_t>{6});
  backend->expiry({.segments = ref::segments_of(words),
                   .segment_count = 1,
                   .max_count = kCount,
                   .kv_heads = kHeads,
                   .window = 5,
                   .gates = ref::data_of<float>(gates),
                   .threshold = 0.1F,
                   .drop = 0.75F,
                   .seed = 11,
                   .numbers = ref::data_of<int32_t>(numbers),
                   .first_heads = ref::data_of<int32_t>(first_heads),
                   .expires = ref::data_of<int32_t>(expires)});
  const std::vector<int32_t> got = ref::download_array<int32_t>(expires);
  int dropped = 0;
  for (int32_t i = 0; i < kCount; ++i) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      const auto position = static_cast<uint32_t>(10 + i);
      const bool stays = hash_uniform(11, 3, 6 + head, position) >= 0.75F;
      ASSERT_EQ(got[static_cast<size_t>(i) * kHeads + head], stays ? kNever : 10 + i + 5);
      dropped += !stays;
    }
  }
  // Four standard deviations of 8000 draws.
  EXPECT_NEAR(dropped / 8000.0, 0.75, 4 * std::sqrt(0.75 * 0.25 / 8000));
}

// Each layer has gates, admitted heads and numbers of heads of its own.
TEST_P(Expiry, OfSomeLayersAtOnceIsThatOfEach) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kLayers = 3;
  constexpr int64_t kTokens = 6, kOfLayer = kTokens * 2;
  Tokens tokens(*backend);
  Tensor gates = ref::upload_array(*backend, ref::random_values(kLayers * kOfLayer, 1));
  Tensor heads = ref::upload_array(*backend, std::vector<uint8_t>{0, 1, 0, 0, 1, 0});
  Tensor numbers = ref::upload_array(*backend, std::vector<int32_t>{3, 5});
  Tensor first_heads = ref::upload_array(*backend, std::vector<int32_t>{6, 2, 40});
  Tensor together(*backend, DType::kI32, kLayers * kOfLayer);
  ExpiryArgs args = tokens.args();
  args.numbers = ref::data_of<int32_t>(numbers);
  for (const float drop : {0.0F, 0.5F}) {
    args.drop = drop;
    args.heads_admitted = ref::data_of<uint8_t>(heads);
    args.gates = ref::data_of<float>(gates);
    args.first_heads = ref::data_of<int32_t>(first_heads);
    ExpiryArgs all = args;
    all.layers = kLayers;
    all.tokens = kTokens;
    all.expires = ref::data_of<int32_t>(together);
    backend->expiry(all);
    const std::vector<int32_t> got = ref::download_array<int32_t>(together);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(ref::slice(got, layer * kOfLayer, kOfLayer), tokens.of(*backend, args)) << "layer " << layer;
      args.heads_admitted += 2, args.gates += kOfLayer, args.first_heads += 1;
    }
  }
}

}  // namespace
}  // namespace kv
