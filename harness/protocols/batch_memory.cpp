#include "harness/protocols/batch_memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "harness/protocols/answer_runner.h"
#include "harness/protocols/pruning.h"
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

using Policies = std::vector<Policy>;

std::shared_ptr<Policies> policies_of(const UnitBatch& workload) {
  auto policies = std::make_shared<Policies>();
  for (const Case& unit_case : workload.workload.cases) {
    policies->push_back(make_case_policy(workload.spec, unit_case));
  }
  return policies;
}

// Those that evict, by when they do.
struct AnsweringPolicies {
  Policies compressed;                    // once
  Policies pruned;                        // while the context is read
  std::map<std::string, Policy> readers;  // of the contexts, by reading_of
};

std::shared_ptr<AnsweringPolicies> answering_policies_of(const UnitBatch& workload) {
  auto policies = std::make_shared<AnsweringPolicies>();
  for (const Case& unit_case : workload.workload.cases) {
    policies->readers.try_emplace(reading_of(unit_case), make_reader(workload.spec, unit_case));
    Policy policy = make_case_policy(workload.spec, unit_case);
    if (!policy.scorer) continue;
    (is_pruned(unit_case) ? policies->pruned : policies->compressed).push_back(std::move(policy));
  }
  return policies;
}

int largest_interval(const UnitBatch& workload) {
  int largest = 0;
  for (const Case& unit_case : workload.workload.cases) {
    const Policy policy = make_case_policy(workload.spec, unit_case);
    if (policy.scorer && is_pruned(unit_case)) largest = std::max(largest, pruning_of(unit_case, policy).interval);
  }
  return largest;
}

// Tokens of one sample in a block: a piece of what is read without an event, or an interval.
int largest_block(const UnitBatch& workload) { return std::max(workload.spec.chunk(), largest_interval(workload)); }

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
          most = std::max(kPlainBlock, largest_block(workload)), interval = largest_interval(workload),
          needs = workload.needs](int samples) {
    RunShape shape = full_cache(source.info(), samples, longest, most);
    shape.interval = interval;
    size_t bytes = 0;
    for (const Policy& policy : *policies) {
      bytes = std::max(bytes, run_footprint(backend, source, policy, shape).total());
    }
    return bytes + baseline_bytes(backend, source.info(), needs, samples, longest);
  };
}

BatchBytes answer_memory(const UnitBatch& workload) {
  ModelSource& source = *workload.subject.model();
  return [&backend = workload.backend, &source, longest = longest_answer(workload),
          policies = answering_policies_of(workload), most = largest_block(workload),
          interval = largest_interval(workload)](int samples) {
    RunShape shape = full_cache(source.info(), samples, longest, most);
    shape.interval = interval;
    shape.logits = samples * source.vocab();
    const auto with_copies = [](const Footprint& bytes) { return bytes.total() + 2 * bytes.cache; };
    std::vector<Policy*> ranking;
    for (Policy& policy : policies->compressed) ranking.push_back(&policy);
    size_t bytes = 0;
    for (const auto& [reading, reader] : policies->readers) {
      bytes = std::max(bytes, with_copies(run_footprint(backend, source, reader, shape, ranking)));
    }
    for (const Policy& policy : policies->pruned) {
      bytes = std::max(bytes, with_copies(run_footprint(backend, source, policy, shape)));
    }
    return bytes;
  };
}

}  // namespace kv
