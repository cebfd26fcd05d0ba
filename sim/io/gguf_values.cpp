#include "sim/io/gguf_values.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "kernels/error.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

constexpr uint64_t kMaxValues = 1 << 22;
constexpr int kMaxDepth = 4;

// The types of metadata values, by their numbers in the file.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

}  // namespace

std::string shown(const GgufValue& value) {
  struct Show {
    std::string operator()(uint64_t number) const { return fmt::format("{}", number); }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    // Most were written as f32, whose shortest digits are those that were meant.
    std::string operator()(double number) const {
      const auto narrow = static_cast<float>(number);
      return static_cast<double>(narrow) == number ? fmt::format("{}", narrow) : fmt::format("{}", number);
    }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::string_view text) const { return in_quotes(text); }
    std::string operator()(const GgufArray& array) const { return fmt::format("a list of {}", array.size()); }
  };
  return std::visit(Show{}, value.value);
}

std::string_view GgufReader::bytes(uint64_t count, std::string_view what) {
  if (count > bytes_.size() - offset_) fail_short(count, what);
  const std::string_view read(reinterpret_cast<const char*>(bytes_.data()) + offset_, count);
  offset_ += count;
  return read;
}

void GgufReader::fail_short(uint64_t count, std::string_view what) const {
  throw UserError(fmt::format("{}: {} takes {} bytes, but {} are left: the file is cut short or lies", file_,
                              in_quotes(what), count, bytes_.size() - offset_));
}

std::string_view GgufReader::text(std::string_view what) { return bytes(number<uint64_t>(what), what); }

void GgufReader::count_values(uint64_t count, std::string_view key) {
  if (count > kMaxValues - values_) {
    throw UserError(
        fmt::format("{}: {} has {} values, expected at most {} in the file", file_, in_quotes(key), count, kMaxValues));
  }
  values_ += count;
}

GgufArray GgufReader::array(std::string_view key, int depth) {
  if (depth > kMaxDepth) {
    throw UserError(fmt::format("{}: {} is nested deeper than {} lists", file_, in_quotes(key), kMaxDepth));
  }
  const auto type = number<uint32_t>(key);
  const auto count = number<uint64_t>(key);
  if (count > bytes_.size() - offset_) fail_short(count, key);  // each value takes a byte at least
  count_values(count, key);
  GgufArray values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) values.push_back(value(type, key, depth));
  return values;
}

GgufValue GgufReader::value(uint32_t type, std::string_view key, int depth) {
  const auto integer = [&]<class Number>(Number) -> GgufValue {
    const auto read = number<Number>(key);
    if constexpr (std::is_signed_v<Number>) return {int64_t{read}};
    return {uint64_t{static_cast<std::make_unsigned_t<Number>>(read)}};
  };
  switch (type) {
    case kUint8:
      return integer(uint8_t{});
    case kInt8:
      return integer(int8_t{});
    case kUint16:
      return integer(uint16_t{});
    case kInt16:
      return integer(int16_t{});
    case kUint32:
      return integer(uint32_t{});
    case kInt32:
      return integer(int32_t{});
    case kUint64:
      return integer(uint64_t{});
    case kInt64:
      return integer(int64_t{});
    case kFloat32:
      return {double{number<float>(key)}};
    case kFloat64:
      return {number<double>(key)};
    case kBool: {
      const auto byte = number<uint8_t>(key);
      if (byte > 1)
        throw UserError(fmt::format("{}: {} is a bool of {}, expected 0 or 1", file_, in_quotes(key), byte));
      return {byte == 1};
    }
    case kString:
      return {text(key)};
    case kArray:
      return {array(key, depth + 1)};
    default:
      throw UserError(
          fmt::format("{}: {} has type number {}, expected 0 to {}", file_, in_quotes(key), type, uint32_t{kFloat64}));
  }
}

std::map<std::string, GgufValue, std::less<>> GgufReader::metadata(uint64_t count) {
  count_values(count, "the metadata");
  std::map<std::string, GgufValue, std::less<>> metadata;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view key = text("a metadata key");
    const auto type = number<uint32_t>(key);
    if (!metadata.emplace(key, value(type, key, 0)).second) {
      throw UserError(fmt::format("{}: metadata key {} occurs twice", file_, in_quotes(key)));
    }
  }
  return metadata;
}

}  // namespace kv
