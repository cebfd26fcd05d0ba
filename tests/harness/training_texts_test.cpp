#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "harness/files.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec_reader.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/tasks/own_prompts.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr int kWindow = 64;     // tokens; whoever shares twice as many in a row shares a window
constexpr int kTrained = 192;   // texts of a training that are looked at
constexpr int kEvaluated = 16;  // texts of an evaluation's data entry

// Polynomial hash of every window of the ids that begins at a multiple of `step`.
template <class Visit>
void for_each_window(const std::vector<int32_t>& ids, size_t step, const Visit& visit) {
  constexpr uint64_t kBase = 0x9E3779B97F4A7C15;
  uint64_t hash = 0, leaving = 1;  // of the window that ends here; weight of the token that leaves it
  for (int i = 0; i < kWindow; ++i) leaving *= kBase;
  for (size_t end = 1; end <= ids.size(); ++end) {
    hash = hash * kBase + static_cast<uint64_t>(ids[end - 1]) + 1;
    if (end > kWindow) hash -= leaving * (static_cast<uint64_t>(ids[end - 1 - kWindow]) + 1);
    if (end >= kWindow && (end - kWindow) % step == 0) visit(hash);
  }
}

// Calls visit(text) for the first `count` texts of each data entry of a spec. Of contexts that are asked about, for the
// context; questions are few tokens, and what they ask about stands in it.
template <class Visit>
void for_each_text(const Spec& spec, int count, const Visit& visit) {
  const auto backend = make_backend("cpu");
  const Grid grid = make_grid(spec);
  const std::unique_ptr<Subject> subject = open_subject(*backend, spec, 0, grid.models.front());
  for (const Workload& workload : grid.workloads) {
    const int texts = std::min(count, workload.samples);
    if (spec.protocol->name == "answer") {
      for (const Exam& exam : subject->exams(workload, 0, texts)) visit(exam.context);
    } else {
      for (const Sample& sample : subject->samples(workload, 0, texts)) visit(sample.ids);
    }
  }
}

// Of the model whose file or folder ends so.
std::vector<Spec> specs_of_model(const std::string& model) {
  std::vector<Spec> specs;
  for (const auto& entry : fs::directory_iterator(ref::source_path("experiments"))) {
    if (entry.path().extension() != ".yaml") continue;
    // Texts are the same from whatever weights a training goes on, and those of an ablation may be absent.
    std::vector<std::string> overrides;
    if (read_file(entry.path()).find("start:") != std::string::npos) {
      overrides = {"learn.start=foresight-kv", "policies=[foresight-kv]"};
    }
    Spec spec = load_spec(entry.path(), overrides);
    if (spec.models.size() == 1 && spec.models.front().source.text.ends_with(model)) specs.push_back(spec);
  }
  return specs;
}

bool has_texts(const Spec& spec) {
  try {
    return !text_folder(spec).empty();
  } catch (const UserError&) {
    return false;
  }
}

// What a spec reads that is here: of one on somebody's own corpus what is made up, which no corpus changes.
// Tasks that hide facts do so in the same sentences whatever the seed, so their texts cannot be told apart by windows.
Spec read_here(Spec spec) {
  std::erase_if(spec.data, [](const DataSpec& data) {
    return data.kind == DataKind::kTask && data.source.text != "reason" && data.source.text != "book";
  });
  if (has_texts(spec)) return spec;
  spec.texts = {};
  std::erase_if(spec.data, [](const DataSpec& data) { return data.source.text != "reason"; });
  return spec;
}

// What the first `count` texts of the data that are left depend on: many specs share them.
std::string texts_of(const Spec& spec, int count) {
  std::string texts = fmt::format("{} {} {}", spec.protocol->name, spec.texts.text, std::min(count, spec.samples));
  for (const char* key : {"seed", "chat"}) {
    if (const auto found = spec.row_keys.find(key); found != spec.row_keys.end()) texts += " " + found->second;
  }
  for (const DataSpec& data : spec.data) {
    texts += fmt::format("\n{} {} {} {} {}", static_cast<int>(data.kind), data.source.text, data.tokens.value_or(0),
                         std::min(count, data.samples), data.subset);
    for (const GivenParam& option : data.options) texts += fmt::format(" {}={}", option.key, option.text);
  }
  for (const Axis& axis : spec.axes) {
    for (const auto& point : axis.points) {
      for (const GivenParam& value : point) {
        if (value.key == "tokens") texts += "\n" + value.text;
      }
    }
  }
  return texts;
}

// Evaluations that were looked at, and those among them of which an entry is named `read`, because a training has read
// it.
struct Evaluated {
  std::set<std::string> all, on_purpose;
};

// Windows of 64 tokens of every training's first texts, wherever they stand in an evaluation's: nowhere, but in entries
// that are named `read`, each of which has some.
Evaluated expect_nothing_shared(const std::vector<Spec>& specs) {
  std::unordered_map<uint64_t, std::string> trained;
  std::set<std::string> tasks, seen;
  for (const Spec& whole : specs) {
    if (!whole.protocol->learns) continue;
    const Spec spec = read_here(whole);
    for (const DataSpec& data : spec.data) tasks.insert(data.source.text);
    if (spec.data.empty() || !seen.insert(texts_of(spec, kTrained)).second) continue;
    for_each_text(spec, kTrained, [&](const std::vector<int32_t>& ids) {
      for_each_window(ids, kWindow, [&](uint64_t hash) { trained.emplace(hash, spec.name); });
    });
  }
  EXPECT_GT(trained.size(), 3 * kTrained * 2048 / kWindow * 9 / 10);
  int64_t windows = 0;
  const auto shared_with = [&](const Spec& spec) {
    std::map<std::string, int> shared;
    for_each_text(spec, kEvaluated, [&](const std::vector<int32_t>& ids) {
      for_each_window(ids, 1, [&](uint64_t hash) {
        ++windows;
        if (const auto found = trained.find(hash); found != trained.end()) ++shared[found->second];
      });
    });
    return shared;
  };
  const auto is_read = [](const DataSpec& data) { return data.name == "read"; };
  Evaluated evaluated;
  std::set<std::string> looked_at;
  for (Spec spec : specs) {
    if (spec.protocol->name != "decode" && spec.protocol->name != "answer") continue;
    // Contexts that are asked about are many, and most are of tasks that make up what no training reads.
    if (spec.protocol->name == "answer") {
      std::erase_if(spec.data, [&](const DataSpec& data) { return !tasks.contains(data.source.text); });
    }
    if (spec.data.empty()) continue;
    evaluated.all.insert(spec.name);
    // Texts are the same, and weights of an ablation may be absent.
    spec.policies = {parse_component("full", "policy")};
    std::erase_if(spec.axes, [](const Axis& axis) { return axis.points.front().front().key != "tokens"; });
    if (std::ranges::any_of(spec.data, is_read)) {
      Spec read = spec;
      std::erase_if(read.data, std::not_fn(is_read));
      EXPECT_FALSE(shared_with(read).empty()) << spec.name;
      evaluated.on_purpose.insert(spec.name);
      std::erase_if(spec.data, is_read);
    }
    if (!looked_at.insert(texts_of(spec, kEvaluated)).second) continue;  // a failure names the first spec of a text
    for (const auto& [training, count] : shared_with(spec))
      ADD_FAILURE() << spec.name << " shares " << count << " with " << training;
  }
  EXPECT_GT(windows, 1000000);
  return evaluated;
}

TEST(TrainingTextsSlow, AreReadByNoEvaluation) {
  const auto [evaluated, on_purpose] = expect_nothing_shared(specs_of_model("models/reference"));
  EXPECT_EQ(on_purpose, std::set<std::string>());
  for (const char* asks : {"001-figure3", "001-table4-answers", "001-table5-answers"}) {
    EXPECT_TRUE(evaluated.contains(asks)) << asks;  // of `reason`, which every training reads
  }
}

TEST(TrainingTextsSlow, OfSmolLm2AreReadByNoEvaluation) {
  if (!std::getenv("KV_MODEL_TESTS")) GTEST_SKIP() << "needs a model that is downloaded: ./dev test --model";
  const auto [evaluated, on_purpose] =
      expect_nothing_shared(specs_of_model("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"));
  EXPECT_EQ(on_purpose, std::set<std::string>{"001-overlap-smollm2-at-256"});
  for (const char* reads : {"001-foresight-smollm2", "mission-smollm2"})
    EXPECT_TRUE(evaluated.contains(reads)) << reads;
}

// What a model writes for its training comes of other problems than what it is evaluated on.
TEST(TrainingTexts, OfAModelsOwnComeOfOtherPrompts) {
  const auto prompts_of = [](const char* name) {
    return load_prompts(ref::source_path(std::string("experiments/data/") + name)).prompts;
  };
  const std::vector<std::string> trained = prompts_of("training-problems.jsonl.xz");
  const std::set<std::string> distinct(trained.begin(), trained.end());
  EXPECT_EQ(distinct.size(), trained.size());
  EXPECT_GE(trained.size(), 400u);
  for (const char* evaluated : {"word-problems.jsonl.xz", "quantities.jsonl.xz"}) {
    for (const std::string& prompt : prompts_of(evaluated)) EXPECT_FALSE(distinct.contains(prompt)) << prompt;
  }
}

TEST(TrainingTexts, WouldBeFoundIfShared) {
  std::vector<int32_t> text(300), other(200, 7);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i * i % 97);
  std::unordered_map<uint64_t, int> seen;
  for_each_window(text, kWindow, [&](uint64_t hash) { seen.emplace(hash, 0); });
  other.insert(other.end(), text.begin() + 90, text.begin() + 90 + 2 * kWindow);
  int found = 0;
  for_each_window(other, 1, [&](uint64_t hash) { found += static_cast<int>(seen.count(hash)); });
  EXPECT_GE(found, 1);
}

}  // namespace
}  // namespace kv
