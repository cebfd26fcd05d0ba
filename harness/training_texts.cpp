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

TrainingTexts::TrainingTexts(Subject& subject, const Spec& spec, const Grid& grid, int model)
    : subject_(subject), spec_(spec) {
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

std::vector<Sample> TrainingTexts::take(const std::vector<int>& numbers, const std::vector<int>& next) {
  const bool is_coming = coming_.valid() && coming_numbers_ == numbers;
  if (coming_.valid() && !is_coming) coming_.wait();
  std::vector<Sample> texts = is_coming ? coming_.get() : read(numbers);
  coming_numbers_ = next;
  coming_ = {};
  if (!next.empty()) coming_ = std::async(std::launch::async, [this] { return read(coming_numbers_); });
  return texts;
}

std::vector<Sample> TrainingTexts::read(const std::vector<int>& numbers) {
  std::vector<Sample> texts;
  for (const int number : numbers) texts.push_back(read(number));
  return texts;
}

Sample TrainingTexts::read(int number) {
  auto workload = workloads_.begin();
  for (; number >= (*workload)->samples; ++workload) number -= (*workload)->samples;
  return text_of(subject_, **workload, number);
}

}  // namespace kv
