#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/tasks/text.h"

namespace kv {

// What a text states of one key, each value in a sentence of its own.
struct Fact {
  std::string key;
  std::vector<std::string> values;
  std::vector<size_t> insertions = {};  // one for each value
};

// Facts hidden in hay, and the questions about them.
struct Needles {
  std::string kind;  // "magic number": what the values are
  std::vector<Fact> facts;
  DrawnText hay;
  std::vector<Insertion> insertions = {};
  std::vector<std::vector<size_t>> questions = {};  // indices of the facts that each asks for, in its order
};

// "The magic number for amber-anchor is 1234."
std::string needle_sentence(std::string_view kind, std::string_view key, std::string_view value);

// About `chars` bytes of drawn facts of one value, whole sentences.
std::string draw_needle_hay(size_t chars, std::string_view kind, const std::function<Fact()>& draw_fact);

// Gives every value of the facts that stand nowhere yet a uniform place between two sentences of the hay.
void hide(Needles& needles, Random& random);

// Moves the facts that are asked for to one place: of the boundaries between sentences the first behind `depth` of the
// hay's bytes; 0 is in front of the hay, 1 behind it. Throws UserError for a depth outside [0, 1].
void place_at(Needles& needles, double depth);

// Writes the hay with its needles, the questions and their answers, each value linked to its needle. Values of a key
// are listed in the order of the text. The reference wording asks for one key a question.
TaskText write_needles(const Needles& needles, Wording wording);

}  // namespace kv
