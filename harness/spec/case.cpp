#include "harness/spec/case.h"

#include <algorithm>
#include <charconv>

namespace kv {
namespace {

// Its protocol has checked that the text is a number.
template <class T>
T number_in(std::string_view text) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

int Case::count(std::string_view axis) const { return number_in<int>(word(axis)); }

double Case::fraction(std::string_view axis) const { return number_in<double>(word(axis)); }

std::string_view Case::word(std::string_view axis) const {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const GivenParam& setting) { return setting.key == axis; });
  return found == settings.end() ? std::string_view{} : found->text;
}

}  // namespace kv
