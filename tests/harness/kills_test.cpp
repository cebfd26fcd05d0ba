// Real kvlab processes are killed at seeded moments and started again: what a run, a training, a profile or a report
// leaves in the end is what an undisturbed one leaves.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <iterator>
#include <map>
#include <thread>

#include "harness/files.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "harness/run.h"
#include "sim/budget/profile_file.h"
#include "sim/io/hash.h"
#include "sim/io/safetensors.h"
#include "sim/tasks/random.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/kvlab_process.h"
#include "tests/support/text_model.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

class KillsSlow : public testing::Test {
 protected:
  KillsSlow() {
    ref::make_text_model(path("model"));
    Random random(3);
    std::vector<int32_t> ids(150);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(256));
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {150}, .data = ids.data()}};
    write_safetensors(path("ids.safetensors"), tensors);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    test::write_file(path(name), content);
    return path(name);
  }
  static Words run(const std::string& spec, const std::string& out) {
    return {"run", "--quiet", "--no-draw", "--out", out, spec};
  }

  // Whether the process came to its end before `moment`; there it is killed.
  static bool finishes(const Words& words, Clock::duration moment) {
    const pid_t child = ref::start_kvlab(words);
    const auto deadline = Clock::now() + moment;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (Clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGKILL) << words.front();
      return false;
    }
    EXPECT_EQ(WEXITSTATUS(status), 0) << words.front();
    return true;
  }

  // Kills `kills` processes of `words(out)`, each in the place where the one before it died; whenever one comes to its
  // end, what lies in its folder must be `expected`, and the next one starts in another folder.
  void kill(uint64_t stream, int kills, const std::function<Words(const std::string& out)>& words,
            const std::function<std::string(const std::string& out)>& content) const {
    // The second one's time: the first reads program and libraries from the disk.
    const std::string whole = path("whole");
    ASSERT_TRUE(finishes(words(path("first")), std::chrono::minutes(2)));
    const auto begin = Clock::now();
    ASSERT_TRUE(finishes(words(whole), std::chrono::minutes(2)));
    const auto duration = Clock::now() - begin;
    const std::string expected = content(whole);
    ASSERT_FALSE(expected.empty());
    Random random(14, stream);
    int finished = 0;
    std::string out = path("out0");
    for (int killed = 0; killed < kills;) {
      const auto moment = std::chrono::duration_cast<Clock::duration>(duration * random.uniform());
      if (!finishes(words(out), moment)) {
        ++killed;
        continue;
      }
      ASSERT_EQ(content(out), expected) << "after " << killed << " kills";
      fs::remove_all(out);
      out = path(fmt::format("out{}", ++finished));
    }
    ASSERT_TRUE(finishes(words(out), std::chrono::minutes(2)));
    EXPECT_EQ(content(out), expected);
  }

  // rows.csv without what depends on the clock, and nothing beside it that a killed process left.
  static std::string rows_in(const std::string& out) {
    RowTable table = read_rows(fs::path(out) / "rows.csv");
    std::erase_if(table.rows, [](const Row& row) { return is_timing(row.metric); });
    for (const Row& row : table.rows) EXPECT_FALSE(row.metric.empty()) << row.skipped;  // every case could run
    for (const fs::directory_entry& entry : fs::directory_iterator(out)) {
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
    }
    return format_rows(table.axes, table.rows);
  }

  // Rows and weights, and nothing beside the checkpoint that a killed process left.
  static std::string training_in(const std::string& out) {
    std::string all = rows_in(out);
    const SafetensorsFile weights = SafetensorsFile::open(fs::path(out) / "weights/mine.safetensors");
    for (const TensorInfo& tensor : weights.tensors()) {
      all += fmt::format("{} {}\n", tensor.name, sha256_hex(weights.bytes(tensor)));
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(out) / "checkpoints"), {}), 1);
    return all;
  }

  void kill_runs(uint64_t stream, int kills, const std::string& yaml) const {
    const std::string spec = write("spec.yaml", yaml);
    kill(
        stream, kills, [&](const std::string& out) { return run(spec, out); }, rows_in);
  }

  test::TempFolder folder_;
};

TEST_F(KillsSlow, LoseNothingOfDecode) {
  kill_runs(1, 70,
            "model: " + path("model") +
                "\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\npolicies: [full, streaming, h2o]\n"
                "axes: {budget: [16, 24], interval: 8}\nmetrics: [loss]\nsamples: 3\nseed: 5\n");
}

TEST_F(KillsSlow, LoseNothingOfOneShot) {
  kill_runs(2, 60,
            "model: " + path("model") +
                "\nprotocol: one-shot\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\n"
                "policies: [full, keydiff, tova]\naxes: {keep: [0.2, 0.5]}\nmetrics: [loss]\nsamples: 3\n");
}

TEST_F(KillsSlow, LoseNothingOfAnswer) {
  std::string lines;
  for (const char* colour : {"blue", "green", "red"}) {
    lines += fmt::format(
        R"({{"context": "The sky is {0}.", "question": " What?", "answer_prefix": " It is", "answers": ["{0}"],)"
        R"( "max_new_tokens": 4}})"
        "\n",
        colour);
  }
  write("q.jsonl", lines);
  kill_runs(3, 60,
            "model: " + path("model") +
                "\nprotocol: answer\ndata: [{jsonl: q.jsonl}]\npolicies: [full, keydiff]\naxes: {keep: [0.3, "
                "0.6]}\nsamples: 3\n");
}

TEST_F(KillsSlow, LoseNothingOfLatency) {
  kill_runs(4, 50,
            "model: {random: tiny}\nprotocol: latency\npolicies: [full, keydiff]\nsamples: 2\n"
            "axes: {context: [64, 128], keep: [0.3, 0.6]}\n");
}

// Checkpoints after every step, so that a training is killed between them, in one and behind the last.
class KillsOfTrainingsSlow : public KillsSlow {
 protected:
  using Start = std::function<Words(const std::string& out)>;
  Start train(const std::string& name, const std::string& policy, const std::string& learn) const {
    const std::string spec =
        write(name, fmt::format("model: {}\nprotocol: train\n"
                                "data: [{{name: noise, ids: ids.safetensors, tokens: 48}}]\n"
                                "policies: [{}]\nlearn: {{steps: 8, batch: 2, {}}}\nsamples: 3\nseed: 5\n",
                                path("model"), policy, learn));
    return [spec](const std::string& out) {
      return Words{"train", "--quiet", "--no-draw", "--checkpoint",   "0",
                   "--out", out,       "--weights", out + "/weights", spec};
    };
  }
  Start supervised() const {
    return train("supervised.yaml", "{policy: foresight-kv, weights: mine}", "warm_up: 2, budget: 24, interval: 12");
  }
};

TEST_F(KillsOfTrainingsSlow, LoseNothingOfTheFirstStage) { kill(7, 15, supervised(), training_in); }

TEST_F(KillsOfTrainingsSlow, LoseNothingOfTheSecondStage) {
  ASSERT_TRUE(finishes(supervised()(path("begun")), std::chrono::minutes(2)));
  kill(8, 15,
       train("reinforced.yaml", "{policy: foresight-kv, weights: mine}",
             "stage: reinforced, start: " + path("begun/weights/mine.safetensors") +
                 ", group: 2, reward: all, budget: 24, interval: 12"),
       training_in);
}

TEST_F(KillsOfTrainingsSlow, LoseNothingOfGates) {
  kill(9, 15, train("gates.yaml", "{policy: full, admission: {wg-kv: {window: 8, weights: mine}}}", "warm_up: 2"),
       training_in);
}

TEST_F(KillsOfTrainingsSlow, LoseNothingOfRetention) {
  kill(10, 10, train("retention.yaml", "{policy: retention, hidden: 8, weights: mine}", "entries: 8"), training_in);
}

TEST_F(KillsOfTrainingsSlow, LoseNothingOfDuo) {
  kill(11, 10,
       train("duo.yaml", "{policy: full, admission: {duo: {sinks: 2, window: 8, weights: mine}}}", "warm_up: 2"),
       training_in);
}

// A profile is there as a whole or not at all.
TEST_F(KillsSlow, LoseNothingOfProfiles) {
  const std::string spec =
      write("spec.yaml", "model: " + path("model") +
                             "\nprotocol: profile\nseed: 2\nsamples: 1\ndata: [{task: kv, tokens: 700, questions: 2}]\n"
                             "policies: [{policy: keydiff, sinks: 4, recent: 1}]\n");
  const auto profiles = [](const std::string& out) {
    std::string all;
    for (const char* name : {"keydiff_recent=1_sinks=4.json", "oracle+order.json"}) {
      BudgetProfile profile = parse_profile(read_file(fs::path(out) / name), name);
      profile.origin.clear();
      all += format_profile(profile);
    }
    return all;
  };
  kill(
      5, 40,
      [&](const std::string& out) {
        return Words{"profile", "--quiet", "--out", out, spec};
      },
      profiles);
}

// Drawing again over files that a killed report left gives the same files; rows are never touched.
TEST_F(KillsSlow, LoseNothingOfReports) {
  const std::string spec =
      write("spec.yaml", "model: " + path("model") +
                             "\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\npolicies: [full, streaming]\n"
                             "axes: {budget: [16, 24], interval: 8}\nmetrics: [loss]\nsamples: 2\n"
                             "plots: [{name: losses, kind: bars, metric: nll_sum, x: budget, series: [policy]}]\n");
  ASSERT_TRUE(finishes(run(spec, path("rows")), std::chrono::minutes(2)));
  const auto files = [&](const std::string& out) {
    std::string all;
    std::map<std::string, std::string> sorted;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(out)) {
      if (entry.is_regular_file()) sorted[entry.path().lexically_relative(out).string()] = read_file(entry.path());
    }
    for (const auto& [name, text] : sorted) all += fmt::format("{} {}\n{}\n", name, text.size(), text);
    return all;
  };
  const auto report = [&](const std::string& out) {
    if (!fs::exists(out)) fs::copy(path("rows"), out, fs::copy_options::recursive);
    return Words{"report", out};
  };
  kill(6, 20, report, files);
}

}  // namespace
}  // namespace kv
