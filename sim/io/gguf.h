#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/io/gguf_blocks.h"
#include "sim/io/gguf_values.h"
#include "sim/io/mapped_file.h"

// The GGUF file format, versions 2 and 3 (docs/gguf.md of the ggml repository), little-endian: magic, version, counts;
// metadata, a key, a type and a value each; the tensors' names, shapes, formats and offsets; at the next multiple of
// general.alignment the tensors' bytes, each at a multiple of it. Every promise is checked before anything is allocated
// from it; each lie is one UserError naming the file and the key or tensor. Deviations from the format's own limits: at
// most 2^22 metadata values and 2^16 tensors, arrays nested at most 4 deep; formats other than those of gguf_blocks.h
// are refused, and so are holes between tensors that alignment does not explain, and bytes after the last.

namespace kv {

struct GgufTensor {
  std::string name;
  BlockFormat format = BlockFormat::kF32;
  std::vector<int64_t> shape;  // row-major: the file's dimensions in reverse; each at least 1
  uint64_t begin = 0;          // byte range inside the data
  uint64_t end = 0;

  int64_t elements() const;
};

class GgufFile {
 public:
  static GgufFile open(const std::filesystem::path& path);  // memory-mapped
  // A view: `bytes` must outlive the object. `name` stands for the path in messages.
  static GgufFile from_bytes(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const GgufTensor* find(std::string_view tensor) const;               // nullptr where there is none

  // nullptr where there is none.
  const GgufValue* value(std::string_view key) const;
  // Throws the UserError that this key's value is not what is expected, or missing.
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;
  // nullopt where the key is absent; UserError where its value is of another kind or outside [least, most].
  std::optional<int64_t> integer(std::string_view key, int64_t least, int64_t most) const;
  std::optional<double> number(std::string_view key, double above, double at_most) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  const GgufArray* array(std::string_view key) const;  // nullptr where the key is absent

  // Elements [first, first + out.size()) of the tensor, unpacked; both counts are multiples of its format's block.
  // UserError names the first that is NaN or infinite.
  void read_f32(const GgufTensor& tensor, int64_t first, std::span<float> out) const;

 private:
  std::string name_;
  std::optional<MappedFile> file_;
  uint32_t version_ = 0;
  std::span<const std::byte> data_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Whether the path's name ends as those of GGUF files do, whatever it holds.
bool is_gguf(const std::filesystem::path& path);

}  // namespace kv
