#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/model/tokenizer/definition.h"

namespace kv {

// A stretch of text: an added token, or (id < 0) ordinary text.
struct Stretch {
  std::string_view text;
  int32_t id = -1;
};

// Finds added tokens in text, leftmost first, the longest where several start at one place.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // The stretches of well-formed text, in order, none empty; views into `text`.
  std::vector<Stretch> find(std::string_view text) const;

 private:
  const AddedToken* match_at(std::string_view text) const;

  std::array<std::vector<AddedToken>, 256> by_first_byte_;  // longest first
  bool empty_;
};

}  // namespace kv
