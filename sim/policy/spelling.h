#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kv {

// Returns the candidate with the smallest edit distance, if that is small enough to be a slip; empty otherwise.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// Returns ", did you mean 'candidate'?", for an error about an unknown word; empty where no candidate is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// Returns a user's text as an error can show it: one line of at most 60 bytes.
std::string shown(std::string_view text);

}  // namespace kv
