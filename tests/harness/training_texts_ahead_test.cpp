// A step's texts, which another thread reads while the step before is learned from.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "harness/training_texts.h"
#include "kernels/error.h"

namespace kv {
namespace {

// Its texts are one token each, which says whose they are: 10 · tokens of the workload + index.
class Numbers final : public Subject {
 public:
  const std::string& name() const override { return name_; }
  const std::string& fingerprint() const override { return name_; }
  std::vector<Sample> samples(const Workload& workload, int first, int) override {
    ++read;
    if (std::this_thread::get_id() != asked_by_) ++read_ahead;
    if (10 * workload.tokens + first == bad) throw UserError("cannot be had");
    return {{.name = "", .ids = {10 * workload.tokens + first}, .labels = {}, .links = {}}};
  }
  std::vector<Exam> exams(const Workload&, int, int) override { return {}; }
  std::vector<JsonlProblem> malformed(const Workload&) override { return {}; }
  const Tokenizer& tokenizer() override { throw UserError("none"); }
  std::vector<int32_t> stop_ids() const override { return {}; }
  Source& source(int, int) override { throw UserError("none"); }
  ModelSource* model() override { return nullptr; }
  std::function<std::string(std::span<const int32_t>)> decoder() override { return {}; }

  std::atomic<int> read = 0, read_ahead = 0;
  int bad = -1;

 private:
  std::string name_ = "numbers";
  std::thread::id asked_by_ = std::this_thread::get_id();
};

class TextsAhead : public testing::Test {
 protected:
  TextsAhead() {
    grid_.workloads.resize(2);
    grid_.workloads[0].tokens = 1;
    grid_.workloads[0].samples = 2;
    grid_.workloads[1].tokens = 2;
    grid_.workloads[1].samples = 3;
    grid_.workloads[0].model = grid_.workloads[1].model = 0;
  }

  std::vector<int32_t> take(TrainingTexts& texts, const std::vector<int>& numbers) {
    std::vector<int32_t> ids;
    for (const SharedIds& text : texts.take(numbers)) ids.push_back(text->front());
    return ids;
  }

  Numbers subject_;
  Spec spec_;
  Grid grid_;
};

TEST_F(TextsAhead, AreThoseOfTheirNumbers) {
  TrainingTexts texts(subject_, spec_, grid_, 0);
  EXPECT_EQ(texts.count(), 5);
  EXPECT_EQ(take(texts, {4, 0}), (std::vector<int32_t>{22, 10}));
  texts.expect({1, 2});
  EXPECT_EQ(take(texts, {1, 2}), (std::vector<int32_t>{11, 20}));
  EXPECT_EQ(subject_.read_ahead, 2);
  texts.expect({3});
  EXPECT_EQ(take(texts, {0}), (std::vector<int32_t>{10})) << "whatever was expected";
  EXPECT_TRUE(take(texts, {}).empty());
}

TEST_F(TextsAhead, AreReadOnce) {
  TrainingTexts texts(subject_, spec_, grid_, 0);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(take(texts, {4, 0}), (std::vector<int32_t>{22, 10}));
    texts.expect({0, 3});
    EXPECT_EQ(take(texts, {0, 3}), (std::vector<int32_t>{10, 21}));
  }
  EXPECT_EQ(subject_.read, 3);
}

TEST_F(TextsAhead, AreReadAgainWhereThereIsNoRoomToKeepThem) {
  TrainingTexts texts(subject_, spec_, grid_, 0, 1);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(take(texts, {4, 0}), (std::vector<int32_t>{22, 10}));
  EXPECT_EQ(subject_.read, 1 + 3) << "of one token there is room for one text";
}

TEST_F(TextsAhead, FailWhereTheyAreTaken) {
  TrainingTexts texts(subject_, spec_, grid_, 0);
  subject_.bad = 21;
  EXPECT_EQ(take(texts, {0}), (std::vector<int32_t>{10}));
  texts.expect({3});
  EXPECT_THROW(take(texts, {3}), UserError);
  texts.expect({3});
  EXPECT_EQ(take(texts, {1}), (std::vector<int32_t>{11})) << "unsaid where nobody asks for them";
}

}  // namespace
}  // namespace kv
