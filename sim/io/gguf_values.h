#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kv {

struct GgufValue;
using GgufArray = std::vector<GgufValue>;

// A metadata value: unsigned and signed integers of any width, floats of both, the others as they are. Texts are any
// bytes of the file, and live as long as it.
struct GgufValue {
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

// The value on one line, shortened; of an array its length.
std::string shown(const GgufValue& value);

// Walks over the head of a GGUF file, whose values have no fixed places. `what` names what is read, for the UserError
// of a file that ends before it.
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  std::string_view file() const { return file_; }
  std::size_t offset() const { return offset_; }

  template <class Number>
  Number number(std::string_view what) {
    Number number;
    std::memcpy(&number, bytes(sizeof number, what).data(), sizeof number);
    return number;
  }
  std::string_view bytes(uint64_t count, std::string_view what);
  std::string_view text(std::string_view what);  // a length and its bytes
  // `count` keys with their values; UserError for a key that occurs twice, an unknown type, more values than allowed.
  std::map<std::string, GgufValue, std::less<>> metadata(uint64_t count);

 private:
  GgufValue value(uint32_t type, std::string_view key, int depth);
  GgufArray array(std::string_view key, int depth);
  void count_values(uint64_t count, std::string_view key);
  [[noreturn]] void fail_short(uint64_t count, std::string_view what) const;

  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::size_t offset_ = 0;
  uint64_t values_ = 0;  // read so far
};

}  // namespace kv
