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

#include "sim/io/mapped_file.h"

// The safetensors file format: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes.
// Every promise of a header is checked before anything is allocated from it; each lie is one UserError naming file and
// tensor. Deviation from the format's own limits: headers above 32 MB are refused (it allows 100 MB; real ones stay
// below 5 MB), and so are dtypes other than those below.

namespace kv {

enum class Dtype { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);
std::size_t dtype_bytes(Dtype dtype);

// "[2, 3]"; a scalar is "[]".
std::string shape_text(std::span<const int64_t> shape);

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  uint64_t begin = 0;          // byte range inside the data that follows the header
  uint64_t end = 0;

  int64_t elements() const;
};

using Metadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);  // memory-mapped
  // A view: `bytes` must outlive the object. `name` stands for the path in messages.
  static SafetensorsFile from_bytes(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  const Metadata& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view tensor) const;             // nullptr where there is none
  const TensorInfo& require(std::string_view tensor) const;          // UserError where there is none
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;  // not necessarily aligned to the dtype

  // Reads F32, F16, BF16 or F64 (rounded to f32); another dtype is a UserError. The second form reads out.size()
  // elements from flat index `first` on, so that a large tensor need not be held whole.
  std::vector<float> read_f32(const TensorInfo& tensor) const;
  void read_f32(const TensorInfo& tensor, int64_t first, std::span<float> out) const;
  // Reads I32 or I64; a value outside int32 is a UserError that names its index.
  std::vector<int32_t> read_i32(const TensorInfo& tensor) const;

 private:
  std::string name_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> data_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  Metadata metadata_;
};

struct TensorDecl {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
};

// Throws UserError where `path` is something other than a file: the rename would put a file in the place of a device.
// SafetensorsWriter checks it, too; this is for who computes for long before writing.
void check_replaceable(const std::filesystem::path& path);

// Writes one file, tensor by tensor or interleaved, holding nothing in memory. The bytes go to a temporary file in the
// same folder, which finish() syncs and renames; without finish(), or after an error, nothing is left behind. Failing
// system calls (no such folder, no permission, disk full) are UserErrors; writing more or fewer bytes than declared is
// the caller's mistake. In the file wider dtypes come first, so every tensor is aligned to its element size.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorDecl> tensors, Metadata metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // Appends to the tensor's own bytes; any order between tensors.
  void write(std::string_view tensor, std::span<const std::byte> bytes);

  template <class T>
  void write_values(std::string_view tensor, std::span<const T> values) {
    write(tensor, std::as_bytes(values));
  }

  // Replaces a declared value that is known only at the end, such as a checksum, by one of the same length.
  void set_metadata(const std::string& key, const std::string& value);

  void finish();

 private:
  std::string header() const;
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  [[noreturn]] void fail(std::string_view action, int error) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;  // in file order
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<uint64_t> written_;  // bytes, per tensor
  std::size_t header_bytes_ = 0;   // including the length field
  int file_ = -1;
};

struct TensorData {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

void write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors, Metadata metadata = {});

}  // namespace kv
