#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/model/tokenizer/definition.h"
#include "sim/model/tokenizer/regex.h"

namespace kv {

// Cuts text into the pieces inside which bytes may merge.
class PreTokenizer {
 public:
  PreTokenizer(const std::vector<SplitDefinition>& splits, std::string_view owner);

  // One call's memory; keep it between the pieces of one text.
  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& splitter);

   private:
    friend class PreTokenizer;
    std::vector<Matcher> matchers_;
  };

  // The pieces of well-formed `text`, in order, none empty.
  std::vector<std::string> pieces(std::string_view text, Scratch& scratch) const;

 private:
  struct Step {
    Regex regex;
    SplitDefinition split;
  };
  std::vector<Step> steps_;
};

}  // namespace kv
