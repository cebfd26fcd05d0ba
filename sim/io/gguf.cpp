#include "sim/io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/io/finite.h"
#include "sim/io/safetensors.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the files that are read are little-endian, and so is a copy");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint32_t kMaxDimensions = 4;
constexpr int64_t kDefaultAlignment = 32, kMaxAlignment = 1 << 20;
constexpr std::string_view kAlignment = "general.alignment";

uint64_t aligned(uint64_t offset, uint64_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

[[noreturn]] void fail_tensor(std::string_view file, std::string_view tensor, std::string_view reason) {
  throw UserError(fmt::format("{}: tensor {}: {}", file, in_quotes(tensor), reason));
}

uint32_t read_version(GgufReader& reader) {
  const auto magic = reader.bytes(kMagic.size(), "its magic");
  if (magic != kMagic) {
    throw UserError(fmt::format("{}: begins with {}, expected {}: not a GGUF file", reader.file(), in_quotes(magic),
                                in_quotes(kMagic)));
  }
  const auto version = reader.number<uint32_t>("its version");
  if (version >= kOldestVersion && version <= kNewestVersion) return version;
  const bool swapped = __builtin_bswap32(version) <= kNewestVersion && version != 0;
  throw UserError(fmt::format("{}: GGUF version {}, expected {} or {}{}", reader.file(), version, kOldestVersion,
                              kNewestVersion, swapped ? ", little-endian: this file is big-endian" : ""));
}

// Reads name, shape, format and offset; all but the place of its end inside the data, which is not known yet.
GgufTensor read_tensor(GgufReader& reader) {
  GgufTensor tensor;
  tensor.name = reader.text("a tensor's name");
  const auto fail = [&](const std::string& reason) { fail_tensor(reader.file(), tensor.name, reason); };
  const auto dimensions = reader.number<uint32_t>("the shape of a tensor");
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    fail(fmt::format("{} dimensions, expected 1 to {}", dimensions, kMaxDimensions));
  }
  int64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = reader.number<uint64_t>("the shape of a tensor");
    if (!std::in_range<int64_t>(size) || size == 0)
      fail(fmt::format("a dimension of {}, expected 1 to 2^63 - 1", size));
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    if (__builtin_mul_overflow(elements, tensor.shape.front(), &elements)) {
      fail(fmt::format("shape {} overflows", shape_text(tensor.shape)));
    }
  }
  const auto number = reader.number<uint32_t>("the format of a tensor");
  const auto format = block_format_from_number(number);
  if (!format) fail(fmt::format("format number {} is not supported; expected one of {}", number, block_format_names()));
  tensor.format = *format;
  if (tensor.shape.back() % block_values(*format) != 0) {
    fail(fmt::format("rows of {}, expected a multiple of {} for {}", tensor.shape.back(), block_values(*format),
                     block_format_name(*format)));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block_values(*format), static_cast<int64_t>(block_bytes(*format)), &bytes)) {
    fail(fmt::format("shape {} overflows", shape_text(tensor.shape)));
  }
  tensor.begin = reader.number<uint64_t>("the offset of a tensor");
  if (__builtin_add_overflow(tensor.begin, static_cast<uint64_t>(bytes), &tensor.end)) {
    fail(fmt::format("an offset of {} overflows", tensor.begin));
  }
  return tensor;
}

// Sorted by their bytes, the tensors follow each other without overlap, each at the next multiple of the alignment.
void check_layout(std::span<const GgufTensor> tensors, uint64_t data_bytes, uint64_t alignment,
                  const std::string& file) {
  const GgufTensor* previous = nullptr;
  for (const GgufTensor& tensor : tensors) {
    const auto fail = [&](const std::string& reason) { fail_tensor(file, tensor.name, reason); };
    const uint64_t end = previous ? previous->end : 0;
    if (tensor.begin % alignment != 0) {
      fail(fmt::format("begins at byte {} of the data, expected a multiple of the alignment {}", tensor.begin,
                       alignment));
    }
    if (tensor.begin < end) {
      fail(fmt::format("its bytes [{}, {}) overlap those of tensor {}, which end at {}", tensor.begin, tensor.end,
                       in_quotes(previous->name), end));
    }
    if (tensor.end > data_bytes) {
      fail(fmt::format("its bytes [{}, {}) reach beyond the {} bytes of data: the file is cut short or lies",
                       tensor.begin, tensor.end, data_bytes));
    }
    if (tensor.begin != aligned(end, alignment)) {
      fail(fmt::format("begins at byte {} of the data, which leaves a hole after byte {}", tensor.begin, end));
    }
    previous = &tensor;
  }
  const uint64_t end = previous ? previous->end : 0;
  if (data_bytes <= aligned(end, alignment)) return;
  throw UserError(fmt::format("{}: the data end {} bytes after the last tensor {}", file, data_bytes - end,
                              previous ? in_quotes(previous->name) : "(there is none)"));
}

}  // namespace

int64_t GgufTensor::elements() const {
  return static_cast<int64_t>((end - begin) / block_bytes(format)) * block_values(format);
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  MappedFile file = MappedFile::open(path);
  GgufFile parsed = from_bytes(file.bytes(), path.string());
  parsed.file_ = std::move(file);
  return parsed;
}

GgufFile GgufFile::from_bytes(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  GgufReader reader(bytes, file.name_);
  file.version_ = read_version(reader);
  const auto tensors = reader.number<uint64_t>("its counts");
  const auto values = reader.number<uint64_t>("its counts");
  if (tensors > kMaxTensors) {
    throw UserError(fmt::format("{}: {} tensors, expected at most {}", file.name_, tensors, kMaxTensors));
  }
  file.metadata_ = reader.metadata(values);
  for (uint64_t i = 0; i < tensors; ++i) file.tensors_.push_back(read_tensor(reader));

  const auto alignment = static_cast<uint64_t>(file.integer(kAlignment, 1, kMaxAlignment).value_or(kDefaultAlignment));
  if (!std::has_single_bit(alignment)) file.refuse(kAlignment, "a power of two");
  file.data_ = bytes.subspan(std::min<std::size_t>(aligned(reader.offset(), alignment), bytes.size()));
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const GgufTensor& a, const GgufTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(file.tensors_, file.data_.size(), alignment, file.name_);
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
    if (!file.index_.emplace(file.tensors_[i].name, i).second) {
      fail_tensor(file.name_, file.tensors_[i].name, "the name occurs twice");
    }
  }
  return file;
}

const GgufTensor* GgufFile::find(std::string_view tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

void GgufFile::refuse(std::string_view key, std::string_view expected) const {
  const GgufValue* found = value(key);
  throw UserError(fmt::format("{}: {} is {}, expected {}", name_, key, found ? shown(*found) : "missing", expected));
}

std::optional<int64_t> GgufFile::integer(std::string_view key, int64_t least, int64_t most) const {
  const GgufValue* found = value(key);
  if (!found) return std::nullopt;
  std::optional<int64_t> number;
  if (const auto* wide = std::get_if<uint64_t>(&found->value); wide && std::in_range<int64_t>(*wide)) {
    number = static_cast<int64_t>(*wide);
  }
  if (const auto* narrow = std::get_if<int64_t>(&found->value)) number = *narrow;
  if (!number || *number < least || *number > most) refuse(key, fmt::format("an integer from {} to {}", least, most));
  return number;
}

std::optional<double> GgufFile::number(std::string_view key, double above, double at_most) const {
  const GgufValue* found = value(key);
  if (!found) return std::nullopt;
  const auto* number = std::get_if<double>(&found->value);
  if (!number || !(*number > above && *number <= at_most)) {
    refuse(key, fmt::format("a float above {} and at most {}", above, at_most));
  }
  return *number;
}

std::optional<bool> GgufFile::flag(std::string_view key) const {
  const GgufValue* found = value(key);
  if (!found) return std::nullopt;
  const auto* flag = std::get_if<bool>(&found->value);
  if (!flag) refuse(key, "true or false");
  return *flag;
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const GgufValue* found = value(key);
  if (!found) return std::nullopt;
  const auto* text = std::get_if<std::string_view>(&found->value);
  if (!text) refuse(key, "a text");
  return *text;
}

const GgufArray* GgufFile::array(std::string_view key) const {
  const GgufValue* found = value(key);
  if (!found) return nullptr;
  const auto* array = std::get_if<GgufArray>(&found->value);
  if (!array) refuse(key, "a list");
  return array;
}

void GgufFile::read_f32(const GgufTensor& tensor, int64_t first, std::span<float> out) const {
  const int64_t values = block_values(tensor.format);
  const auto count = static_cast<int64_t>(out.size());
  KV_CHECK(first >= 0 && first % values == 0 && count % values == 0 && count <= tensor.elements() - first);
  const std::size_t bytes = block_bytes(tensor.format);
  const std::size_t begin = tensor.begin + static_cast<std::size_t>(first / values) * bytes;
  unpack_blocks(tensor.format, data_.subspan(begin, static_cast<std::size_t>(count / values) * bytes), out);
  refuse_non_finite(out, first, {.name = tensor.name, .shape = tensor.shape}, name_);
}

bool is_gguf(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

}  // namespace kv
