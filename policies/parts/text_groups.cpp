#include "policies/parts/text_groups.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/error.h"
#include "policies/parts/options.h"
#include "sim/source/source.h"

namespace kv {

namespace {

void check_ids(std::span<const int32_t> ids, int vocabulary) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw UserError(fmt::format("token id {} is outside the vocabulary of {}", id, vocabulary));
  }
}

// As many of the first as go through a model together.
std::span<const std::span<const int32_t>> next_texts(std::span<const std::span<const int32_t>> left,
                                                     int64_t tokens_at_once) {
  KV_CHECK(!left.empty());
  size_t count = 1;
  int64_t tokens = std::ssize(left.front());
  while (count < left.size() && tokens + std::ssize(left[count]) <= tokens_at_once) {
    tokens += std::ssize(left[count++]);
  }
  return left.first(count);
}

TextGroup group_of(const LearnBatch& batch, std::span<const std::span<const int32_t>> texts) {
  const int vocabulary = model_of(batch).config.vocab_size;
  Backend& backend = batch.backend;
  TextGroup group;
  std::vector<int32_t> counts;
  for (const std::span<const int32_t> text : texts) {
    check_ids(text, vocabulary);
    counts.push_back(static_cast<int32_t>(text.size()));
    group.ids.insert(group.ids.end(), text.begin(), text.end());
  }
  group.block = make_block(backend, std::vector<int32_t>(texts.size(), 0), counts);
  group.device_ids = Tensor(backend, DType::kI32, std::ssize(group.ids));
  group.device_ids.upload(group.ids.data(), group.device_ids.bytes());
  return group;
}

}  // namespace

int64_t read_tokens_at_once(Params& params) {
  return option_at_least(
      params, 1, "tokens_at_once", 16384,
      "wg-kv, duo, retention: tokens of a step that go through the model together, whole texts, at least one: memory "
      "grows with them, results do not change but for rounding (retention reads a step once more where it takes more "
      "than "
      "one go)");
}

bool read_deterministic(Params& params) {
  return params.get(
             "deterministic", "yes", {"yes", "no"},
             "wg-kv, duo, retention: whether sums over gradients have one order, so that a training ends with the "
             "same bits each time; without, attention's way back on Hopper, of heads of 64 or 128, takes five "
             "products in place of seven, which is hardly faster, and each run differs by roundings") == "yes";
}

double read_lambda(Params& params, double fallback) {
  const double lambda = params.get("lambda", fallback,
                                   "what gates are taught beside the model's words weighs: sparsity (wg-kv, 0.04), the "
                                   "mean α (duo, 0.05), what exceeds the capacity (retention, 1)");
  if (!(lambda >= 0) || !std::isfinite(lambda)) params.fail("lambda", "expected a number of at least 0");
  return lambda;
}

const ForwardModel& model_of(const LearnBatch& batch) {
  const ForwardModel* const model = batch.source.frozen_model();
  KV_CHECK(model);  // protocol train runs a model
  return *model;
}

int64_t tokens_of(const LearnBatch& batch) {
  int64_t tokens = 0;
  for (const std::span<const int32_t> text : batch.sequences) tokens += std::ssize(text);
  return tokens;
}

int64_t step_tokens_of(const LearnBatch& batch) { return batch.part ? batch.part->step_tokens : tokens_of(batch); }

double share_of(const LearnBatch& batch) {
  return static_cast<double>(tokens_of(batch)) / static_cast<double>(step_tokens_of(batch));
}

bool is_one_group(const LearnBatch& batch, int64_t tokens_at_once) {
  if (batch.part) return false;
  return batch.sequences.size() == 1 || tokens_of(batch) <= tokens_at_once;
}

void for_each_group(const LearnBatch& batch, int64_t tokens_at_once, const std::function<void(const TextGroup&)>& visit,
                    std::optional<TextGroup> first) {
  const auto all = static_cast<double>(step_tokens_of(batch));
  for (std::span<const std::span<const int32_t>> left = batch.sequences; !left.empty();) {
    TextGroup group = first ? std::move(*first) : group_of(batch, next_texts(left, tokens_at_once));
    first.reset();
    group.share = static_cast<double>(group.ids.size()) / all;
    left = left.subspan(group.block.segments.size());
    visit(group);
  }
}

TextGroup first_group(const LearnBatch& batch, int64_t tokens_at_once) {
  return group_of(batch, next_texts(batch.sequences, tokens_at_once));
}

}  // namespace kv
