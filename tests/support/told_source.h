#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {

// What a source says of a token. `output` is the first number of the last layer's attention; copy −1 reads alone, with
// the full cache.
struct Token {
  int32_t text = 0, copy = -1, position = 0;
  float output = 0;
};

// TinySource with losses as they are told. Keeps what attention gave, by text and copy, so that replays can be
// compared.
class ToldSource final : public Source {
 public:
  using Number = std::function<float(const Token&)>;
  using Outputs = std::map<std::pair<int32_t, int32_t>, std::vector<float>>;

  ToldSource(Backend& backend, const SourceInfo& info, std::vector<TinySample> samples)
      : backend_(backend), source_(backend, info, std::move(samples)) {}

  Number loss = [](const Token&) { return 0.0F; };
  Number entropy = [](const Token&) { return 0.0F; };
  Outputs outputs;

  const SourceInfo& info() const override { return source_.info(); }
  void begin(std::span<const std::span<const int32_t>> sequences) override {
    source_.begin(sequences);
    std::map<int32_t, int32_t> copies;
    for (const auto& ids : sequences) ++copies[ids[0]];
    const std::map<int32_t, int32_t> all = copies;
    sequences_.clear();
    for (const auto& ids : sequences) {
      const int32_t of_text = all.at(ids[0]);
      sequences_.push_back({.text = ids[0], .copy = of_text == 1 ? -1 : of_text - copies[ids[0]]--});
    }
  }
  void start(const Block& block) override {
    block_ = &block;
    source_.start(block);
  }
  Projections project(int layer) override { return source_.project(layer); }
  void absorb(int, ConstRef head_outputs) override {
    const int64_t width = int64_t{info().q_heads} * info().head_dim;
    const std::vector<float> all = download_activations(backend_, head_outputs, block_->tokens * width);
    newest_.clear();
    for (int64_t token = 0; token < block_->tokens; ++token) newest_.push_back(all[static_cast<size_t>(token * width)]);
    for (const Segment& segment : block_->segments) {
      const Token& of = sequences_[static_cast<size_t>(segment.sequence)];
      const auto first = all.begin() + segment.first_token * width;
      std::vector<float>& kept = outputs[{of.text, of.copy}];
      kept.insert(kept.end(), first, first + segment.count * width);
    }
  }
  void finish(TokenLosses& losses) override {
    const auto tokens = static_cast<size_t>(block_->tokens);
    losses = {.nll = std::vector<float>(tokens), .entropy = std::vector<float>(tokens)};
    losses.argmax.assign(tokens, 0);
    for (const Segment& segment : block_->segments) {
      Token token = sequences_[static_cast<size_t>(segment.sequence)];
      for (int32_t i = 0; i < segment.count; ++i) {
        const auto at = static_cast<size_t>(segment.first_token + i);
        token.position = segment.first_position + i;
        token.output = newest_[at];
        losses.nll[at] = loss(token);
        losses.entropy[at] = entropy(token);
      }
    }
  }
  ConstRef output_weight(int) const override { return {}; }

 private:
  Backend& backend_;
  TinySource source_;
  std::vector<Token> sequences_;
  const Block* block_ = nullptr;
  std::vector<float> newest_;
};

}  // namespace kv::ref
