#include "tests/support/gguf_file.h"

namespace kv::ref {

namespace {

// Type numbers of the format.
constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kList = 9;

template <class Number>
std::string raw(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::string sized(std::string_view text) { return raw(uint64_t{text.size()}).append(text); }

void pad(std::string& bytes, uint64_t alignment) {
  bytes.append((alignment - bytes.size() % alignment) % alignment, '\0');
}

}  // namespace

void GgufBuilder::put_raw(std::string_view key, uint32_t type, std::string_view bytes) {
  values_ += sized(key) + raw(type);
  values_ += bytes;
  ++count_;
}

void GgufBuilder::put_text(std::string_view key, std::string_view value) { put_raw(key, kText, sized(value)); }
void GgufBuilder::put_u32(std::string_view key, uint32_t value) { put_raw(key, kU32, raw(value)); }
void GgufBuilder::put_f32(std::string_view key, float value) { put_raw(key, kF32, raw(value)); }
void GgufBuilder::put_bool(std::string_view key, bool value) { put_raw(key, kBool, raw(uint8_t{value})); }

void GgufBuilder::put_texts(std::string_view key, std::span<const std::string> values) {
  std::string list = raw(kText) + raw(uint64_t{values.size()});
  for (const std::string& value : values) list += sized(value);
  put_raw(key, kList, list);
}

void GgufBuilder::put_i32s(std::string_view key, std::span<const int32_t> values) {
  std::string list = raw(kI32) + raw(uint64_t{values.size()});
  for (const int32_t value : values) list += raw(value);
  put_raw(key, kList, list);
}

void GgufBuilder::put_f32_tensor(std::string name, std::vector<uint64_t> dimensions, std::span<const float> values) {
  tensors.push_back({.name = std::move(name),
                     .dimensions = std::move(dimensions),
                     .bytes = {reinterpret_cast<const char*>(values.data()), values.size_bytes()}});
}

std::string GgufBuilder::bytes() const {
  std::string head =
      "GGUF" + raw(version) + raw(tensor_count.value_or(tensors.size())) + raw(value_count.value_or(count_)) + values_;
  std::string data;
  for (const TensorEntry& tensor : tensors) {
    head += sized(tensor.name) + raw(static_cast<uint32_t>(tensor.dimensions.size()));
    for (const uint64_t size : tensor.dimensions) head += raw(size);
    head += raw(tensor.format) + raw(tensor.offset.value_or(data.size()));
    data += tensor.bytes;
    pad(data, alignment);
  }
  pad(head, alignment);
  return head + data;
}

}  // namespace kv::ref
