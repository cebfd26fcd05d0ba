#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/model/tokenizer/definition.h"

namespace kv {

// Byte-pair encoding: of all neighbouring pairs that the merges name, the one of the lowest rank, leftmost first, is
// replaced until none is left (Sennrich et al. 2016). O(n log n) in the bytes of a piece.
class Bpe {
 public:
  explicit Bpe(const TokenizerDefinition& definition);

  // Appends the ids of the piece. Throws UserError for a byte that the vocabulary lacks.
  void append(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Target {
    int32_t rank;
    int32_t result;
  };
  const Target* find(int32_t left, int32_t right) const;

  std::string name_;
  std::vector<int32_t> byte_tokens_;
  std::unordered_map<uint64_t, Target> merges_;
  std::unordered_map<std::string, int32_t> whole_pieces_;  // filled only where pieces are looked up before merging
};

}  // namespace kv
