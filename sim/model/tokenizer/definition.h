#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/model/tokenizer/regex.h"

namespace kv {

// What a tokenizer.json says, checked and without JSON: the other parts are built from it.

// How matches become pieces, as in the `tokenizers` library: `isolated` makes each match a piece, `removed` drops it,
// `merged_*` glues it to its neighbour, `contiguous` joins neighbouring matches.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class MatchRole { kDelimiter, kContent };  // kContent is the file's invert: the gaps are the delimiters

enum class PrefixSpace { kNone, kAdded };

struct SplitDefinition {
  std::string pattern;
  PatternKind kind = PatternKind::kRegex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  MatchRole role = MatchRole::kDelimiter;
  PrefixSpace prefix = PrefixSpace::kNone;  // put before a piece that does not start with a space, before splitting it
};

enum class FoundIn { kGivenText, kNormalizedText };

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool strips_left = false;   // swallows the white space before it
  bool strips_right = false;  // and after it
  FoundIn found_in = FoundIn::kGivenText;
};

struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

enum class Normalization { kNone, kNfc };
enum class WholeWords { kMerged, kLookedUp };  // kLookedUp is the file's ignore_merges

struct TokenizerDefinition {
  std::string name;                  // stands in front of every error
  std::vector<std::string> tokens;   // bytes by id; empty where no token has the id
  std::vector<Merge> merges;         // by rank
  std::vector<int32_t> byte_tokens;  // by byte; -1 where the vocabulary lacks it
  std::vector<AddedToken> added;
  std::vector<SplitDefinition> splits;  // applied in order
  Normalization normalization = Normalization::kNone;
  WholeWords whole_words = WholeWords::kMerged;
};

// Throws UserError, one line that starts with `name`, for whatever Tokenizer refuses.
TokenizerDefinition parse_tokenizer(std::string_view json, std::string_view name);
// The same of the parsed file; its texts are well-formed UTF-8.
TokenizerDefinition parse_tokenizer(const nlohmann::json& root, std::string_view name);

}  // namespace kv
