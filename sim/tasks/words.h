#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sim/tasks/random.h"

namespace kv {

// The words and values of the texts that the reference model was trained on.
const std::vector<std::string>& nouns();
const std::vector<std::string>& adjectives();

// Decimal, the first digit not 0.
std::string random_number(Random& random, int digits);

// "amber-anchor"
std::string random_key(Random& random);

// Eight hexadecimal digits.
std::string random_hexadecimal_key(Random& random);

// What keys and values look like.
enum class Form : uint8_t {
  kWords,          // random_key
  kNumber,         // seven decimal digits, as RULER's
  kHexadecimal,    // eight digits, a key of the reference model's
  kHexadecimal16,  // the longest value that it was trained on
  kUuid,           // 8-4-4-4-12 hexadecimal digits, version 4
};
std::string random_form(Form form, Random& random);

// Draws of one form that never repeat. Throws UserError where half of all that there are have been drawn.
class DistinctForms {
 public:
  explicit DistinctForms(Form form) : form_(form) {}
  std::string draw(Random& random);

 private:
  Form form_;
  std::set<std::string> seen_;
};

// A number of 4 to 7 digits (70 %), two words (15 %), or 8, 12 or 16 hexadecimal digits (15 %).
std::string random_value(Random& random);

}  // namespace kv
