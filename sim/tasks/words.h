#pragma once

#include <string>
#include <vector>

#include "sim/random.h"

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

// A number of 4 to 7 digits (70 %), two words (15 %), or 8, 12 or 16 hexadecimal digits (15 %).
std::string random_value(Random& random);

}  // namespace kv
