#include "harness/protocols/batch_memory.h"

#include <algorithm>
#include <memory>

#include "harness/protocols/answer_runner.h"
#include "harness/spec/case_policy.h"
#include "kernels/paged.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/run_footprint.h"

namespace kv {
namespace {

RunShape full_cache(const SourceInfo& info, int samples, int64_t longest, int64_t most_tokens) {
  const int64_t pages = (longest + kPageTokens - 1) / kPageTokens;
  return {.sequences = samples,
          .pages = samples * info.layers * info.kv_heads * pages,
          .longest = longest,
          .tokens = samples * std::min(longest, most_tokens)};
}

std::shared_ptr<std::vector<Policy>> policies_of(const UnitBatch& workload) {
  auto policies = std::make_shared<std::vector<Policy>>();
  for (const Case& unit_case : workload.workload.cases) {
    policies->push_back(make_case_policy(workload.spec, unit_case));
  }
  return policies;
}

int largest_interval(const UnitBatch& workload) {
  int largest = 0;
  for (const Case& unit_case : workload.workload.cases) largest = std::max(largest, unit_case.count("interval"));
  return largest;
}

int64_t longest_sample(const UnitBatch& workload) {
  if (workload.workload.tokens > 0) return workload.workload.tokens;
  int64_t longest = 1;
  for (const Sample& sample : workload.subject.samples(workload.workload, workload.first, workload.count)) {
    longest = std::max<int64_t>(longest, std::ssize(sample.ids));
  }
  return longest;
}

// A context with its question and answer.
int64_t longest_answer(const UnitBatch& workload) {
  int64_t longest = 1;
  for (const AnswerSample& sample : read_answer_samples(workload)) {
    for (const ExamQuestion& question : sample.exam.questions) {
      longest = std::max(longest, std::ssize(sample.exam.context) + std::ssize(question.ids) +
                                      std::ssize(question.prefix) + question.max_new_tokens);
    }
  }
  return longest;
}

}  // namespace

BatchBytes replay_memory(const UnitBatch& workload) {
  Source& source = workload.subject.source(0, 1);
  return [&backend = workload.backend, &source, longest = longest_sample(workload), policies = policies_of(workload),
          chunk = workload.spec.prefill_chunk, interval = largest_interval(workload),
          needs = workload.needs](int samples) {
    RunShape shape = full_cache(source.info(), samples, longest, std::max(chunk, kPlainBlock));
    shape.interval = interval;
    size_t most = 0;
    for (const Policy& policy : *policies) {
      most = std::max(most, run_footprint(backend, source, policy, shape).total());
    }
    return most + baseline_bytes(backend, source.info(), needs, samples, longest);
  };
}

BatchBytes answer_memory(const UnitBatch& workload) {
  ModelSource& source = *workload.subject.model();
  return [&backend = workload.backend, &source, longest = longest_answer(workload), policies = policies_of(workload),
          chunk = workload.spec.prefill_chunk, interval = largest_interval(workload)](int samples) {
    RunShape shape = full_cache(source.info(), samples, longest, chunk);
    shape.interval = interval;
    shape.logits = samples * source.vocab();
    std::vector<Policy*> ranking;
    for (Policy& policy : *policies) {
      if (policy.scorer) ranking.push_back(&policy);
    }
    const Footprint bytes = run_footprint(backend, source, policy_of("full", nullptr), shape, ranking);
    return bytes.total() + 2 * bytes.cache;
  };
}

}  // namespace kv
