#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv::ref {

// The bytes of a GGUF file, written from the format's definition; honest unless something here is changed to lie.
class GgufBuilder {
 public:
  struct TensorEntry {
    std::string name;
    std::vector<uint64_t> dimensions;  // in the file's order: the width first
    uint32_t format = 0;               // F32
    std::string bytes;
    std::optional<uint64_t> offset = std::nullopt;  // instead of the next aligned place
  };

  uint32_t version = 3;
  std::optional<uint64_t> tensor_count = std::nullopt, value_count = std::nullopt;  // instead of the true counts
  uint64_t alignment = 32;  // that is used; general.alignment is a value like any other
  std::vector<TensorEntry> tensors;

  void put_text(std::string_view key, std::string_view value);
  void put_u32(std::string_view key, uint32_t value);
  void put_f32(std::string_view key, float value);
  void put_bool(std::string_view key, bool value);
  void put_texts(std::string_view key, std::span<const std::string> values);
  void put_i32s(std::string_view key, std::span<const int32_t> values);
  // A value of any type number, by its bytes.
  void put_raw(std::string_view key, uint32_t type, std::string_view bytes);
  void put_f32_tensor(std::string name, std::vector<uint64_t> dimensions, std::span<const float> values);

  std::string bytes() const;

 private:
  std::string values_;
  uint64_t count_ = 0;
};

}  // namespace kv::ref
