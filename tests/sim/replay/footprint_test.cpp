#include "sim/replay/run_footprint.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "sim/cache/cache.h"
#include "sim/model/named_models.h"
#include "sim/replay/generate.h"
#include "sim/replay/prefill.h"
#include "sim/replay/replay.h"
#include "sim/source/model_source.h"
#include "tests/support/address_space.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

class FootprintOfTiny : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = ref::try_backend(GetParam());
    if (!backend_) GTEST_SKIP() << GetParam() << " is not here";
    source_ = std::make_unique<ModelSource>(*backend_, RandomWeights(find_named_model("tiny").parse(), 1));
  }

  ReplayResult run(const Policy& policy, const std::vector<std::span<const int32_t>>& sequences,
                   const Schedule& schedule) {
    return replay({.backend = *backend_,
                   .source = *source_,
                   .policy = const_cast<Policy&>(policy),
                   .sequences = sequences,
                   .schedule = schedule,
                   .budget = 32,
                   .interval = 16});
  }

  size_t cache_of(const Policy& policy, const Schedule& schedule) const {
    const RunShape shape = run_shape(resident_bounds(schedule, policy, source_->info()), 128);
    return run_footprint(*backend_, *source_, policy, shape).cache;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelSource> source_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(100, 7);
  // So many sequences of so many tokens: 62500 pages each, for 2 layers and 2 heads, of 1088 bytes in bf16, are 5.4 TB.
  static constexpr size_t kTooMany = 20'000;
  static constexpr int32_t kTooLong = 1'000'000;
  std::vector<int32_t> too_long_ = std::vector<int32_t>(kTooLong, 7);
};

INSTANTIATE_TEST_SUITE_P(Runs, FootprintOfTiny, testing::ValuesIn(ref::backend_names()), ref::backend_case);

TEST_P(FootprintOfTiny, CountsTheWeights) {
  // tiny: embedding and head 2 · 1024 · 64, a final norm; two layers of q, o 64 · 64, k, v 32 · 64, three of 128 · 64
  // and two norms.
  EXPECT_EQ(source_->weight_bytes(),
            bytes_of(backend_->activation_type()) * (2 * 1024 * 64 + 64 + 2 * (2 * 4096 + 2 * 2048 + 3 * 8192 + 128)));
  EXPECT_GE(backend_->bytes_in_use(), source_->weight_bytes());
}

TEST_P(FootprintOfTiny, OfTheCacheIsWhatAReplayReallyTakes) {
  const std::vector<int32_t> lengths = {100, 40};
  const std::vector<std::span<const int32_t>> sequences = {ids_, std::span(ids_).first(40)};
  const std::vector<GivenParam> untrained = {{"weights", "initial", ""}};
  for (const auto& [name, options] : std::vector<std::pair<const char*, std::vector<GivenParam>>>{
           {"full", {}}, {"h2o", {}}, {"snapkv", {}}, {"foresight-kv", untrained}}) {
    const Policy policy = make_policy(name, options);
    const Schedule schedule = policy.scorer ? decode_schedule(lengths, 32, 16) : full_schedule(lengths, 64);
    const ReplayResult result = run(policy, sequences, schedule);
    EXPECT_EQ(cache_of(policy, schedule), result.peak_kv_bytes + result.peak_column_bytes) << name;
  }
}

// Uneven heads of 48 entries on average take more pages than 3: 49 and 47 are 4 and 3.
TEST_P(FootprintOfTiny, CountsThePagesOfUnevenHeads) {
  const std::vector<int32_t> lengths = {100, 40};
  const std::vector<std::span<const int32_t>> sequences = {ids_, std::span(ids_).first(40)};
  const Schedule schedule = decode_schedule(lengths, 32, 16);
  const Policy even = make_policy("random", {}), uneven = make_policy("random", {}, {.allocation = {"ada"}});
  const ReplayResult result = run(uneven, sequences, schedule);
  EXPECT_GT(result.peak_kv_bytes, cache_of(even, schedule)) << "the case shows nothing";
  EXPECT_LE(result.peak_kv_bytes, cache_of(uneven, schedule));
  EXPECT_LE(cache_of(uneven, schedule), 2 * result.peak_kv_bytes);
}

// Three layers of two heads. 20 tokens, of which 10 a head stay, then 20 more.
TEST(ResidentBound, ByHand) {
  SourceInfo info;
  info.layers = 3;
  info.kv_heads = 2;
  const auto after = [&](SlotChoice allocation) {
    const Policy policy = make_policy("random", {}, {std::move(allocation)});
    ResidentBound bound(info);
    bound.add(20);
    EXPECT_EQ(bound.pages(), 6 * 2);
    bound.cut(30, *policy.allocation);  // nothing leaves
    bound.cut(10, *policy.allocation);
    bound.add(20);
    return bound;
  };
  EXPECT_EQ(after({"uniform"}).longest(), 30);
  EXPECT_EQ(after({"uniform"}).pages(), 6 * 2);
  // One head may keep all that its layer does, and all 20 that it has; 180 entries, each head with 15 slots to waste.
  EXPECT_EQ(after({"ada"}).longest(), 40);
  EXPECT_EQ(after({"ada"}).pages(), (180 + 6 * 15) / 16);
  // A head that has grown twice: what it may keep is bounded by what it has, then by twice the mean.
  const Policy pyramid = make_policy("random", {}, {.allocation = {"pyramid"}});
  ResidentBound bound(info);
  for (int interval = 0; interval < 5; ++interval) {
    bound.add(8);
    bound.cut(10, *pyramid.allocation);
  }
  EXPECT_EQ(bound.longest(), 28);
}

// Events at 16 residents a head leave 8. Before the first one every head has 16, a page; one may keep them all (of its
// layer's 2 · 8) at every event, so before later ones it has 24, in two pages.
TEST(GenerationBound, IsOfEveryEventNotOfTheFirst) {
  SourceInfo info;
  info.layers = 3;
  info.kv_heads = 2;
  const auto bound = [&](const char* allocation, int64_t more) {
    return generation_bound(info, *make_allocation(allocation, {}),
                            {.prompt = 1, .kept = 1, .more = more, .budget = 8, .interval = 8});
  };
  EXPECT_EQ(bound("ada", 15).longest(), 16);
  EXPECT_EQ(bound("ada", 15).pages(), 6);
  for (const int64_t more : {23, 24, 1000, 1 << 30}) {
    EXPECT_EQ(bound("uniform", more).longest(), 16);
    EXPECT_EQ(bound("uniform", more).pages(), 6);
    EXPECT_EQ(bound("ada", more).longest(), 24);
    EXPECT_EQ(bound("ada", more).pages(), (6 * 16 + 6 * 15) / 16);
  }
}

// Three layers of two heads, 1000 tokens in blocks of 64: 4 sinks and a window of 60 are seen, and up to 15 entries of
// blocks before and the newest block lie there unswept. Of learned gates that much is sure, and anything possible.
TEST(ResidentBound, OfAnAdmissionIsWhatItForetells) {
  SourceInfo info;
  info.layers = 3;
  info.kv_heads = 2;
  const std::vector<GivenParam> options = {{"sinks", "4", ""}, {"window", "60", ""}};
  const auto after = [&](const char* admission, Foreseen foreseen) {
    const Policy policy = make_policy("full", {}, {.admission = {admission, options}});
    const std::vector<int32_t> lengths = {1000};
    return resident_bounds(full_schedule(lengths, 64), policy, info, nullptr, foreseen).front();
  };
  for (const Foreseen foreseen : {Foreseen::kSurely, Foreseen::kAtMost}) {
    EXPECT_EQ(after("local", foreseen).longest(), 4 + 60 + 15 + 64);
    EXPECT_EQ(after("local", foreseen).pages(), 6 * 9);
    // Three heads retrieve: (3 · 143 + 3 · 1079 + 6 · 15) / 16 pages, where no head has more than its 1000 entries.
    EXPECT_EQ(after("duo", foreseen).longest(), 1000);
    EXPECT_EQ(after("duo", foreseen).pages(), (3 * 143 + 3 * 1079 + 6 * 15) / 16);
  }
  EXPECT_EQ(after("wg-kv", Foreseen::kSurely).pages(), 6 * 9);
  EXPECT_EQ(after("wg-kv", Foreseen::kAtMost).pages(), 6 * 63);
}

// Dense caches of 10 · 2^19 tokens in 4 heads would be 2.8 GB. What surely is needed are windows, so a generation may
// begin, and is over here with its first token.
TEST(AdmittedGeneration, IsNotRefusedForWhatADenseCacheTakes) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, RandomWeights(find_named_model("tiny").parse(), 1));
  const std::vector<int32_t> ids(10, 7);
  const std::vector<std::span<const int32_t>> prompts(10, ids);
  std::vector<int32_t> any_id(static_cast<size_t>(source.vocab()));
  std::iota(any_id.begin(), any_id.end(), 0);
  const auto new_ids = [&](const SlotChoice& admission) {
    Policy policy = make_policy("full", {}, {.admission = admission});
    const GenerateResult result = generate({.backend = *backend,
                                            .source = source,
                                            .policy = policy,
                                            .prompts = prompts,
                                            .max_new_tokens = 1 << 19,
                                            .stop_ids = any_id});
    return result.sequences.front().ids.size();
  };
  const ref::AddressSpaceLimit limit(1'000'000'000);
  EXPECT_THROW(new_ids({"none"}), MemoryError);
  EXPECT_EQ(new_ids({"local", {{"sinks", "4", ""}, {"window", "60", ""}}}), 1U);
  EXPECT_EQ(new_ids({"wg-kv", {{"weights", "initial", ""}, {"window", "60", ""}}}), 1U);
  EXPECT_THROW(new_ids({"wg-kv", {{"drop", "0.25", ""}, {"window", "60", ""}}}), MemoryError);
}

// 4000 tokens in 4 heads of 250 pages. A pass that lets in 72 at a time takes no page for others, nor does a copy.
TEST_P(FootprintOfTiny, APrefillUnderAnAdmissionTakesPagesAsEntriesCome) {
  const std::vector<int32_t> context(4000, 7);
  const std::span<const int32_t> contexts[] = {context};
  const SlotChoice local{"local", {{"sinks", "8", ""}, {"window", "64", ""}}};
  Policy reader = make_policy("full", {}, {.admission = local});
  Policy keydiff = make_policy("keydiff", {}, {.admission = local});
  Policy* const policies[] = {&keydiff};
  const size_t dense =
      4 * 250 * page_bytes({.head_dim = source_->info().head_dim, .window = 64}, backend_->activation_type());
  const size_t before = backend_->bytes_in_use();
  Prefill prefill({.backend = *backend_,
                   .source = *source_,
                   .contexts = contexts,
                   .policies = policies,
                   .reader = &reader,
                   .prefill_chunk = 64});
  EXPECT_LT(backend_->bytes_in_use() - before, dense / 2);
  double seconds = 0;
  const int32_t keep[] = {32}, room[] = {16};
  const size_t passed = backend_->bytes_in_use();
  const LoopState copy = prefill.compressed(0, keep, seconds, room);
  EXPECT_LT(backend_->bytes_in_use() - passed, dense / 2);
}

TEST_P(FootprintOfTiny, BoundsWhatAGenerationOfManyEventsReallyTakes) {
  Policy policy = make_policy("random", {}, {.allocation = {"ada"}});
  const std::vector<std::span<const int32_t>> prompts = {std::span(ids_).first(1)};
  const GenerateResult result = generate({.backend = *backend_,
                                          .source = *source_,
                                          .policy = policy,
                                          .prompts = prompts,
                                          .budget = 32,
                                          .interval = 16,
                                          .max_new_tokens = 200});
  const SourceInfo& info = source_->info();
  const auto bytes = [&](int64_t more) {
    const GenerationLength length{.prompt = 1, .kept = 1, .more = more, .budget = 32, .interval = 16};
    const auto pages = generation_bound(info, *policy.allocation, length).pages();
    const CacheShape shape{.layers = info.layers, .kv_heads = info.kv_heads, .head_dim = info.head_dim};
    return static_cast<size_t>(pages) * page_bytes(shape, backend_->activation_type());
  };
  EXPECT_GT(result.costs.peak_kv_bytes, bytes(47)) << "up to the first event: the case shows nothing";
  EXPECT_LE(result.costs.peak_kv_bytes, bytes(199));
}

// The one line of a refusal, which ends with what is free; nothing was allocated for it.
template <class Ask>
std::string refusal(Backend& backend, const Ask& ask) {
  const size_t before = backend.bytes_in_use();
  backend.reset_peak();
  std::string line = test::user_error(ask);
  EXPECT_EQ(backend.peak_bytes(), before);
  EXPECT_TRUE(line.ends_with(bytes_text(backend.memory().total) + " are free on " + std::string(backend.name())))
      << line;
  return line;
}

TEST_P(FootprintOfTiny, AReplayThatDoesNotFitAllocatesNothing) {
  const std::vector<std::span<const int32_t>> sequences(kTooMany, too_long_);
  Schedule schedule(1);
  schedule[0].counts.assign(sequences.size(), kTooLong);
  schedule[0].keep.assign(sequences.size(), -1);
  const std::string line = refusal(*backend_, [&] { run(make_policy("full", {}), sequences, schedule); });
  EXPECT_TRUE(line.starts_with("a batch of 20000 under full does not fit: it needs ")) << line;
}

TEST_P(FootprintOfTiny, AGenerationThatDoesNotFitAllocatesNothing) {
  // A thousand sequences of 2^28 tokens: each takes 73 GB in bf16.
  const std::vector<std::span<const int32_t>> prompts(1000, ids_);
  Policy full = make_policy("full", {});
  const std::string line = refusal(*backend_, [&] {
    generate({.backend = *backend_, .source = *source_, .policy = full, .prompts = prompts, .max_new_tokens = 1 << 28});
  });
  EXPECT_TRUE(line.starts_with("a batch of 1000 under full does not fit: it needs ")) << line;
}

TEST_P(FootprintOfTiny, APrefillThatDoesNotFitAllocatesNothing) {
  const std::vector<std::span<const int32_t>> contexts(kTooMany, too_long_);
  Policy keydiff = make_policy("keydiff", {});
  Policy* const policies[] = {&keydiff};
  const std::string line = refusal(*backend_, [&] {
    Prefill({.backend = *backend_,
             .source = *source_,
             .contexts = contexts,
             .policies = policies,
             .prefill_chunk = kTooLong});
  });
  EXPECT_TRUE(line.starts_with("a prefill of 20000 contexts does not fit: it needs ")) << line;
}

TEST_P(FootprintOfTiny, AModelThatDoesNotFitAllocatesNothing) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "llama", "hidden_size": 524288, "num_hidden_layers": 1, "num_attention_heads": 4096,
          "intermediate_size": 524288, "vocab_size": 1024, "max_position_embeddings": 4096})",
      "huge");
  // Seven matrices of 2^38 values, two embeddings of 2^29 and three norms: 3.8 TB in bf16.
  const size_t bytes = bytes_of(backend_->activation_type()) * ((size_t{7} << 38) + (size_t{2} << 29) + (3U << 19));
  const std::string line = refusal(*backend_, [&] { ModelSource(*backend_, RandomWeights(config, 1)); });
  EXPECT_TRUE(line.starts_with("a llama model of 1 layers does not fit: it needs " + bytes_text(bytes) + " (weights "))
      << line;
}

TEST_P(FootprintOfTiny, RefusalsSayWhatIsNeededAndWhatIsFree) {
  const Memory memory = backend_->memory();
  EXPECT_GT(memory.total, size_t{1} << 28);
  EXPECT_LE(memory.free, memory.total);
  EXPECT_NO_THROW(require_memory(*backend_, {.cache = 1000}, "a run"));
  const std::string line = refusal(*backend_, [&] {
    require_memory(*backend_, {.weights = 3'000'000'000'000'000, .cache = 2'500'000'000'000'000}, "a run");
  });
  EXPECT_TRUE(
      line.starts_with("a run does not fit: it needs 5500000.00 GB (weights 3000000.00 GB, KV cache 2500000.00 "
                       "GB), and "))
      << line;
}

TEST(BytesText, UsesDecimalUnits) {
  EXPECT_EQ(bytes_text(999'999), "999999 bytes");
  EXPECT_EQ(bytes_text(1'500'000), "1.5 MB");
  EXPECT_EQ(bytes_text(16'060'522'496), "16.06 GB");
}

}  // namespace
}  // namespace kv
