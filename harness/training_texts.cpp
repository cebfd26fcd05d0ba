#include "harness/training_texts.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/error.h"

namespace kv {

namespace {

Sample text_of(Subject& subject, const Workload& workload, int index) {
  return std::move(subject.samples(workload, index, 1).front());
}

}  // namespace

TrainingTexts::TrainingTexts(Subject& subject, const Spec& spec, const Grid& grid, int model, int64_t kept_tokens)
    : subject_(subject), spec_(spec), room_(kept_tokens) {
  for (const Workload& workload : grid.workloads) {
    if (workload.model == model) workloads_.push_back(&workload);
  }
}

int TrainingTexts::count() const {
  int total = 0;
  for (const Workload* workload : workloads_) total += workload->samples;
  return total;
}

void TrainingTexts::check(int64_t least_tokens) {
  for (const Workload* workload : workloads_) {
    // Texts of one length are there if the last one is.
    for (int i = workload->tokens > 0 ? workload->samples - 1 : 0; i < workload->samples; ++i) {
      const Sample sample = text_of(subject_, *workload, i);
      if (std::ssize(sample.ids) >= least_tokens) continue;
      const DataSpec& data = spec_.data[static_cast<size_t>(workload->data)];
      throw UserError(
          fmt::format("{}: data: '{}': text {} has {} tokens, expected at least {}, or nothing is "
                      "learned from it",
                      data.source.where, data.name, i, sample.ids.size(), least_tokens));
    }
  }
}

std::vector<SharedIds> TrainingTexts::take(const std::vector<int>& numbers) {
  std::future<std::vector<SharedIds>> coming = std::exchange(coming_, {});
  if (!coming.valid()) return read(numbers);
  if (expected_ == numbers) return coming.get();
  coming.wait();
  return read(numbers);
}

void TrainingTexts::expect(const std::vector<int>& numbers) {
  if (coming_.valid()) coming_.wait();
  expected_ = numbers;
  coming_ = std::async(std::launch::async, [this] { return read(expected_); });
}

std::vector<SharedIds> TrainingTexts::read(const std::vector<int>& numbers) {
  std::vector<SharedIds> texts;
  for (const int number : numbers) texts.push_back(read(number));
  return texts;
}

SharedIds TrainingTexts::read(int number) {
  if (const auto kept = kept_.find(number); kept != kept_.end()) return kept->second;
  int index = number;
  auto workload = workloads_.begin();
  for (; index >= (*workload)->samples; ++workload) index -= (*workload)->samples;
  auto text = std::make_shared<const std::vector<int32_t>>(std::move(text_of(subject_, **workload, index).ids));
  if (std::ssize(*text) <= room_) {
    room_ -= std::ssize(*text);
    kept_.emplace(number, text);
  }
  return text;
}

}  // namespace kv
