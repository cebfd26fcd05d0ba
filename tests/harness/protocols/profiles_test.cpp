#include "harness/protocols/profiles.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "harness/protocols/answer_importance.h"
#include "harness/run.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/budget/oracle_importance.h"
#include "sim/budget/profile_file.h"
#include "sim/io/hash.h"
#include "sim/model/model_files.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/prefill.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv::test {
namespace {

std::string reference() { return ref::source_path("experiments/models/reference"); }

std::string yaml(const std::string& policies = "[{policy: keydiff, sinks: 4, recent: 1}, h2o]",
                 const std::string& more = "") {
  return fmt::format(
      "model: {}\nprotocol: profile\nseed: 2\nsamples: 2\ndata: [{{task: kv, tokens: 224, questions: 3}}]\n"
      "policies: {}\n{}",
      reference(), policies, more);
}

BudgetProfile profile_in(const std::filesystem::path& file) { return parse_profile(read_file(file), file.string()); }

// All that a file says but for code, machine and time.
std::string content(const std::filesystem::path& file) {
  BudgetProfile profile = profile_in(file);
  EXPECT_FALSE(profile.origin.empty());
  profile.origin.clear();
  return format_profile(profile);
}

class Profile : public testing::Test {
 protected:
  std::vector<SavedProfile> make(const std::string& text, const std::string& out) {
    return make_profiles(parse_spec(text, "p.yaml"), {.out = folder_ / out, .verbosity = Verbosity::kQuiet});
  }
  std::string refusal(const std::string& text) {
    try {
      make(text, "none");
    } catch (const UserError& error) {
      return error.what();
    }
    return "not refused";
  }
  TempFolder folder_;
};

TEST_F(Profile, OfEveryPolicyIsAFileThatSaysHowItWasMade) {
  const auto profiles = make(yaml(), "a");
  ASSERT_EQ(profiles.size(), 3U);
  EXPECT_EQ(profiles[0].file, folder_ / "a/keydiff_recent=1_sinks=4.json");
  EXPECT_EQ(profiles[1].file, folder_ / "a/h2o.json");
  EXPECT_EQ(profiles[2].file, folder_ / "a/oracle+order.json");
  for (const SavedProfile& profile_file : profiles) {
    const BudgetProfile profile = profile_in(profile_file.file);
    EXPECT_EQ(profile.model, "reference");
    EXPECT_EQ(profile.fingerprint, fingerprint(reference()));
    EXPECT_EQ(profile.layers, 8);
    EXPECT_EQ(profile.kv_heads, 4);
    EXPECT_THAT(profile.calibration.data, testing::ElementsAre("kv: kv, questions 3, tokens 224"));
    EXPECT_EQ(profile.calibration.samples, 2);
    EXPECT_EQ(profile.calibration.questions, 6);
    EXPECT_EQ(profile.calibration.seed, 2U);
    EXPECT_TRUE(profile.split_half);
    for (const size_t i : {49U, 79U}) {
      EXPECT_LE(profile.losses.bound[i], profile.losses.greedy[i]);
      EXPECT_LT(profile.losses.profile[i], profile.losses.uniform[i]);
      EXPECT_LE(profile.losses.uniform[i], 8);
    }
  }
  // In the oracle's order every entry that leaves is one of the least important.
  EXPECT_LT(profiles[2].profile.losses.greedy[79], profiles[0].profile.losses.greedy[79]);
  EXPECT_EQ(profile_in(profiles[0].file).scorer, "keydiff {recent: 1, sinks: 4}");
  EXPECT_EQ(profile_in(profiles[0].file).protection, (Protection{4, 1}));
  EXPECT_THAT(profile_table(profiles), testing::HasSubstr("| h2o | 80 % |"));
  // The same spec gives the same bytes; a policy's profile does not depend on the others.
  const auto again = make(yaml("[{policy: keydiff, recent: 1, sinks: 4}]"), "b");
  EXPECT_EQ(content(again[0].file), content(profiles[0].file));
}

// Attention times norm as it is weighs layers otherwise than shares of a layer's total do, and so divides otherwise.
// The default spelt out changes the name alone.
TEST_F(Profile, CountsLossesAsItIsAskedTo) {
  const std::string spec = replaced(yaml("[{policy: keydiff, sinks: 4, recent: 1}]"), "samples: 2", "samples: 1");
  const auto plain = make(spec, "a");
  const auto spelt = make(spec + "importance: {normalise: layer}\n", "a");
  const auto raw = make(spec + "importance: {group: max, normalise: none}\n", "a");
  EXPECT_EQ(raw[0].file, folder_ / "a/keydiff_recent=1_sinks=4+group=max+normalise=none.json");
  EXPECT_EQ(spelt[0].file, folder_ / "a/keydiff_recent=1_sinks=4+normalise=layer.json");
  EXPECT_EQ(spelt[0].profile.removed, plain[0].profile.removed);
  EXPECT_NE(raw[0].profile.removed, plain[0].profile.removed);
  EXPECT_EQ(raw[0].profile.scorer, plain[0].profile.scorer);
  EXPECT_THAT(profile_in(raw[0].file).calibration.data,
              testing::ElementsAre("kv: kv, questions 3, importance group max, importance normalise none, tokens 224"));
  EXPECT_THAT(refusal(spec + "importance: {normalise: head}\n"), testing::HasSubstr("expected layer | none"));
}

TEST_F(Profile, OfAnotherCalibrationStandsBesideTheModelsOwn) {
  const std::string spec = replaced(yaml("[{policy: keydiff, sinks: 4, recent: 1}]"), "samples: 2", "samples: 1");
  EXPECT_EQ(make(spec + "calibration: {name: words}\n", "a")[0].file,
            folder_ / "a/keydiff_recent=1_sinks=4+words.json");
  EXPECT_EQ(make(spec + "importance: {group: max}\ncalibration: {name: words}\n", "a")[0].file,
            folder_ / "a/keydiff_recent=1_sinks=4+words+group=max.json");
  EXPECT_THAT(test::user_error([&] { parse_spec(spec + "calibration: {name: a/b}\n", "x.yaml"); }),
              testing::HasSubstr("expected letters, digits, - and ."));
}

TEST_F(Profile, OfAScorerThatJudgesByAnIntervalIsOfAnEventAfterOne) {
  const std::string spec = yaml("[{policy: foresight-kv}]");
  EXPECT_EQ(refusal(spec),
            "p.yaml:6:12: policy 'foresight-kv' judges by an interval's queries, expected one: calibration: {interval: "
            "N}");
  const auto profiles = make(spec + "calibration: {interval: 32}\n", "a");
  EXPECT_EQ(profiles[0].file, folder_ / "a/foresight-kv.json");
  EXPECT_EQ(profiles[0].profile.protection, (Protection{0, 32}));
  EXPECT_THAT(profiles[0].profile.calibration.data,
              testing::ElementsAre("kv: kv, questions 3, interval 32, tokens 224"));
  EXPECT_LT(profiles[0].profile.losses.profile[49], profiles[0].profile.losses.uniform[49]);
  EXPECT_EQ(profiles[1].file, folder_ / "a/oracle+order+interval=32.json");
  EXPECT_EQ(make(replaced(yaml("[snapkv]"), "samples: 2", "samples: 1") + "calibration: {interval: 32}\n", "a")[0].file,
            folder_ / "a/snapkv+interval=32.json");  // beside that of prompts
  EXPECT_EQ(refusal(yaml("[{policy: h2o, mode: original}]") + "calibration: {interval: 32}\n"),
            "p.yaml:6:12: policy 'h2o' runs at an interval of 1, not at that of the calibration, 32");
  EXPECT_EQ(refusal(spec + "calibration: {interval: 224}\n"),
            "p.yaml: a context of 184 tokens, expected more than calibration: interval = 224");
  EXPECT_THAT(refusal(spec + "calibration: {interval: -1}\n"), testing::HasSubstr("expected at least 0"));
}

TEST_F(Profile, SaysOfCodeMachineAndTimeWhatAManifestSays) {
  const auto profiles = make(replaced(yaml("[h2o]"), "samples: 2", "samples: 1"), "a");
  RunOptions options;
  options.out = folder_ / "run";
  options.draw = Draw::kLater;
  options.verbosity = Verbosity::kQuiet;
  run_experiment(
      parse_spec(fmt::format("model: {}\ndata: [{{task: kv, tokens: 64}}]\npolicies: [full]\n", reference()), "r.yaml"),
      options);
  const auto manifest = nlohmann::json::parse(read_file(options.out / "manifest.json"));
  ASSERT_EQ(profiles.size(), 2U);
  EXPECT_EQ(profile_in(profiles[0].file).origin, profile_in(profiles[1].file).origin);
  const auto origin = nlohmann::json::parse(profile_in(profiles[0].file).origin);
  for (const char* key : {"commit", "changes", "sources_sha256", "device", "machine", "build"})
    EXPECT_EQ(origin[key], manifest[key]);
  EXPECT_EQ(origin["spec_sha256"].get<std::string>().size(), 64U);
  EXPECT_THAT(origin["date"].get<std::string>(), testing::MatchesRegex("[0-9-]+T[0-9:]+Z"));
  EXPECT_EQ(origin.size(), 8U);
}

TEST_F(Profile, DoesNotDependOnThreads) {
  std::vector<std::vector<SavedProfile>> profiles;
  for (const int threads : {1, 2}) {
    const ref::Threads set(threads);
    profiles.push_back(make(replaced(yaml(), "samples: 2", "samples: 1"), fmt::format("threads{}", threads)));
  }
  ASSERT_EQ(profiles[0].size(), profiles[1].size());
  for (size_t i = 0; i < profiles[0].size(); ++i) EXPECT_EQ(content(profiles[0][i].file), content(profiles[1][i].file));
}

TEST_F(Profile, ServesLuKvAndIsNamedByItsContent) {
  const auto profiles = make(yaml("[{policy: keydiff, sinks: 4, recent: 1}]"), "a");
  const std::string text = fmt::format(
      "model: {}\nseed: 3\ndata: [{{task: kv, tokens: 128}}]\nprotocol: one-shot\naxes: {{keep: 0.3}}\n"
      "policies: [{{policy: keydiff, sinks: 4, recent: 1, allocation: {{lu-kv: {{profile: {}}}}}}}]\nmetrics: "
      "[recall]\n",
      reference(), profiles[0].file.string());
  RunOptions options;
  options.out = folder_ / "run";
  options.draw = Draw::kLater;
  options.verbosity = Verbosity::kQuiet;
  options.after_case = [] { throw std::runtime_error("killed"); };
  EXPECT_THROW(run_experiment(parse_spec(text, "r.yaml"), options), std::runtime_error);
  BudgetProfile other = profile_in(profiles[0].file);
  other.removed[5] /= 2;
  write_atomically(profiles[0].file, format_profile(other));
  options.after_case = [] {};
  const RunSummary summary = run_experiment(parse_spec(text, "r.yaml"), options);
  EXPECT_EQ(summary.reused, 0);
  const auto manifest = nlohmann::json::parse(read_file(options.out / "manifest.json"));
  EXPECT_EQ(manifest["profiles"], nlohmann::json::array({{{"model", "reference"},
                                                          {"file", profiles[0].file.filename().string()},
                                                          {"sha256", sha256_hex(read_file(profiles[0].file))}}}));
  EXPECT_EQ(summary.skipped + summary.failed, 0);
}

TEST_F(Profile, RefusesWhatItCannotUse) {
  EXPECT_EQ(refusal(yaml("[full]")), "p.yaml:6:12: policy 'full' never evicts, so there is nothing to profile");
  EXPECT_EQ(refusal(yaml("[golden]")), "p.yaml:6:12: policy 'golden' needs the future, which no profile can foresee");
  for (const char* allocation : {"ada", "optimal"}) {
    EXPECT_THAT(refusal(yaml(fmt::format("[{{policy: h2o, allocation: {}}}]", allocation))),
                testing::HasSubstr("has an allocation of its own"));
  }
  EXPECT_EQ(refusal(yaml("[h2o]", "axes: {keep: 0.5}\n")),
            "p.yaml:7:7: axes = a map: protocol profile makes no rows, expected no such key");
  EXPECT_THAT(refusal(yaml("[h2o]", "metrics: [recall]\n")), testing::HasSubstr("makes no rows"));
  EXPECT_EQ(refusal(replaced(yaml(), "protocol: profile", "protocol: one-shot")),
            "p.yaml: kvlab profile expects 'protocol: profile'; other protocols are for kvlab run");
  EXPECT_THAT(refusal(replaced(yaml(), "task: kv, tokens: 224, questions: 3", "text: p.txt, tokens: 9")),
              testing::HasSubstr("asks nothing; protocol profile expects a task"));
  EXPECT_THAT(refusal(replaced(yaml(), "task: kv, tokens: 224, questions: 3", "task: plain, tokens: 64")),
              testing::HasSubstr("plain"));
  EXPECT_THROW(run_experiment(parse_spec(yaml(), "p.yaml"), {}), UserError);
}

// What the full-cache pass says of the same text: the answer begins with a statistics block, at 69 + 3.
TEST(AnswerImportance, IsThatOfTheFullCachePass) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(reference()));
  Exam exam;
  for (int32_t i = 0; i < 69; ++i) exam.context.push_back(1 + i * 37 % 4000);
  const ExamQuestion question{
      .ids = {5, 6, 7}, .prefix = {11}, .answers = {}, .max_new_tokens = 0, .expected = {20, 21, 22}};
  const std::vector<int32_t> text = [&] {
    std::vector<int32_t> ids = exam.context;
    ids.insert(ids.end(), {5, 6, 7, 11, 20, 21});
    return ids;
  }();

  Policy full = make_policy("full", {});
  Policy* const policies[] = {&full};
  const std::span<const int32_t> contexts[] = {exam.context};
  const int32_t numbers[] = {0}, keep[] = {69};
  ContextNorms norms(source);
  Observer* const observers[] = {&norms};
  Prefill prefill({.backend = *backend,
                   .source = source,
                   .contexts = contexts,
                   .policies = policies,
                   .sample_numbers = numbers,
                   .prefill_chunk = 32,
                   .observers = observers});
  double seconds = 0;
  const auto importance =
      answer_importance(*backend, source, exam, question, norms, {}, prefill.compressed(0, keep, seconds));

  const std::span<const int32_t> whole[] = {text};
  const Baseline baseline =
      compute_baseline(*backend, source, whole, {.statistics_block = 24, .block_max = true, .value_norms = true});
  const SourceInfo& info = source.info();
  ASSERT_EQ(importance.size(), static_cast<size_t>(info.layers * info.kv_heads));
  for (int layer = 0; layer < info.layers; ++layer) {
    std::vector<std::vector<float>> expected;
    double total = 0;
    for (int head = 0; head < info.kv_heads; ++head) {
      expected.push_back(importance_after(*backend, info, baseline, {}, layer, head, 72));
      for (size_t j = 0; j < 69; ++j) total += expected.back()[j];
    }
    for (int head = 0; head < info.kv_heads; ++head) {
      const auto& head_importance = importance[static_cast<size_t>(layer * info.kv_heads + head)];
      ASSERT_EQ(head_importance.size(), 69U);
      for (size_t j = 0; j < 69; ++j) {
        // Sums of floats in another order, through eight layers.
        EXPECT_NEAR(head_importance[j], expected[static_cast<size_t>(head)][j] / total,
                    1e-3 * head_importance[j] + 1e-7);
      }
    }
  }
}

}  // namespace
}  // namespace kv::test
