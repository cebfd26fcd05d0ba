#include "sim/replay/writer.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/error.h"
#include "kernels/find_bad.h"
#include "kernels/sample.h"

namespace kv {

Writer::Writer(const WriterArgs& args) : args_(args), backend_(args.backend), model_(args.model) {
  std::vector<int32_t> origins;
  std::vector<int32_t> numbers(args.sample_numbers.begin(), args.sample_numbers.end());
  for (const auto& prompt : args.prompts) {
    if (args.sample_numbers.empty()) numbers.push_back(static_cast<int32_t>(origins.size()));
    origins.push_back(static_cast<int32_t>(prompt.size()));
  }
  KV_CHECK(numbers.size() == origins.size());
  origins_ = uploaded(origins);
  numbers_ = uploaded(numbers);
  texts_ = Tensor(backend_, DType::kI32, std::ssize(args.prompts) * args.max_new_tokens);
  logits_ = Tensor(backend_, DType::kF32, std::ssize(args.prompts) * model_.vocab());
  bad_logit_ = Tensor(backend_, DType::kU8, sizeof(uint64_t));  // fresh memory: nothing bad
}

void Writer::start(const Block& block) {
  block_ = &block;
  decoding_ ? model_.start(block, std::as_const(ids_).ref().as<int32_t>()) : model_.start(block);
}

void Writer::finish(TokenLosses& losses) {
  losses = {};
  if (decoding_) {
    draw(nullptr, block_->device_positions.ref().as<int32_t>(), block_->tokens);
  } else {
    draw_first();
  }
}

void Writer::decode(std::span<const int32_t> active, std::span<const int32_t> newest) {
  std::vector<int32_t> rows;
  std::vector<int32_t> ids;
  for (size_t s = 0; s < active.size(); ++s) {
    if (!active[s]) continue;
    rows.push_back(static_cast<int32_t>(s));
    ids.push_back(newest[s]);
  }
  sequences_ = uploaded(rows);
  ids_ = uploaded(ids);
  decoding_ = true;
}

std::vector<int32_t> Writer::texts(int first, int count) const {
  check_logits();
  std::vector<int32_t> ids(static_cast<size_t>(count) * args_.prompts.size());
  backend_.download(ids.data(), texts_.at(first * std::ssize(args_.prompts)).data, ids.size() * sizeof(int32_t));
  return ids;
}

Tensor Writer::uploaded(const std::vector<int32_t>& values) const {
  Tensor tensor(backend_, DType::kI32, std::ssize(values));
  tensor.upload(values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

// For the sequences whose prompt ends in this block.
void Writer::draw_first() {
  std::vector<int32_t> rows, sequences, positions;
  for (const Segment& segment : block_->segments) {
    const int32_t end = segment.first_position + segment.count;
    if (segment.count == 0 || end != std::ssize(args_.prompts[static_cast<size_t>(segment.sequence)])) continue;
    rows.push_back(segment.first_token + segment.count - 1);
    sequences.push_back(segment.sequence);
    positions.push_back(end - 1);
  }
  if (rows.empty()) return;
  const Tensor device_rows = uploaded(rows), device_positions = uploaded(positions);
  sequences_ = uploaded(sequences);
  ids_ = Tensor(backend_, DType::kI32, std::ssize(rows));
  draw(device_rows.ref().as<int32_t>(), device_positions.ref().as<int32_t>(), std::ssize(rows));
}

void Writer::draw(const int32_t* rows, const int32_t* positions, int64_t count) {
  model_.next_logits(rows, count, logits_.ref().as<float>());
  auto* const first_bad = reinterpret_cast<uint64_t*>(bad_logit_.ref().as<uint8_t>());
  backend_.find_bad_value(
      {.values = std::as_const(logits_).ref(), .count = count * model_.vocab(), .first = first_bad});
  backend_.sample({.logits = logits_.ref().as<float>(),
                   .sequences = sequences_.ref().as<int32_t>(),
                   .positions = positions,
                   .numbers = numbers_.ref().as<int32_t>(),
                   .origins = origins_.ref().as<int32_t>(),
                   .first_bad = first_bad,
                   .rows = count,
                   .vocab = model_.vocab(),
                   .sequence_count = std::ssize(args_.prompts),
                   .temperature = args_.sampling.temperature,
                   .top_k = args_.sampling.top_k,
                   .top_p = args_.sampling.top_p,
                   .seed = args_.sampling.seed,
                   .ids = ids_.ref().as<int32_t>(),
                   .texts = texts_.ref().as<int32_t>()});
}

void Writer::check_logits() const {
  uint64_t number = kNothingBad;
  bad_logit_.download(&number, sizeof(number));
  if (number == kNothingBad) return;
  throw NotFiniteError(fmt::format("generation: the logit of token id {} is NaN or infinite (expected a finite number)",
                                   number % static_cast<uint64_t>(model_.vocab())));
}

}  // namespace kv
