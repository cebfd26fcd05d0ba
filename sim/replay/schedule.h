#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// When tokens are processed and when the cache is cut. The same number of steps for every sequence of a batch; a
// sequence that has ended has empty steps.
struct Step {
  std::vector<int32_t> counts;  // [sequences] tokens processed in this step
  std::vector<int32_t> keep;    // [sequences] entries a (layer, KV head) keeps afterwards; −1 = no event
  bool decodes = false;         // one token at most of each sequence, as if generated: selections speak
};
using Schedule = std::vector<Step>;

// Decode-time pruning (001, as its training code runs it): tokens [0, B), then chunks of L; after every full chunk but
// one that ends the sequence, the cache is cut from B + L to B. Long prefixes are processed in pieces of
// `prefill_chunk` (no events between).
Schedule decode_schedule(std::span<const int32_t> lengths, int budget, int interval, int prefill_chunk = 1024);

// The same of prompts, after which more tokens come: a cut that is due at a prompt's end is made.
Schedule prompt_decode_schedule(std::span<const int32_t> lengths, int budget, int interval, int prefill_chunk = 1024);

// Whether that protocol cuts a sequence after `done` of its tokens, if more are to come: every L tokens after the
// first B.
bool cut_is_due(int32_t done, int budget, int interval);

// One-shot compression: tokens [0, context), an event that keeps `keep` entries a head, then the rest.
Schedule one_shot_schedule(std::span<const int32_t> lengths, std::span<const int32_t> contexts,
                           std::span<const int32_t> keep, int prefill_chunk = 1024);

// The same tokens and events, but that from prompts[s] on those of sequence s come one at a time.
Schedule token_by_token(const Schedule& schedule, std::span<const int32_t> prompts);

// No events, steps of `block` tokens.
Schedule full_schedule(std::span<const int32_t> lengths, int block);

// int(tokens · fraction) as kvpress rounds it, at least 1.
int32_t kept_tokens(int32_t tokens, double fraction);

}  // namespace kv
