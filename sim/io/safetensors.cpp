#include "sim/io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/half.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian, and so are the copies below");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 32'000'000;

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<DtypeRow, 10> kDtypes = {{{Dtype::kF64, "F64", 8},
                                               {Dtype::kF32, "F32", 4},
                                               {Dtype::kF16, "F16", 2},
                                               {Dtype::kBF16, "BF16", 2},
                                               {Dtype::kI64, "I64", 8},
                                               {Dtype::kI32, "I32", 4},
                                               {Dtype::kI16, "I16", 2},
                                               {Dtype::kI8, "I8", 1},
                                               {Dtype::kU8, "U8", 1},
                                               {Dtype::kBool, "BOOL", 1}}};

const DtypeRow& row(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)]; }

std::string dtype_names() {
  std::string names;
  for (const DtypeRow& row : kDtypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

std::optional<uint64_t> shape_bytes(std::span<const int64_t> shape, Dtype dtype) {
  uint64_t bytes = dtype_bytes(dtype);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  }
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return bytes;
}

bool is_count(const json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

TensorInfo parse_tensor(const std::string& name, const json& entry, uint64_t data_bytes, const std::string& owner) {
  const auto fail = [&](const std::string& reason) {
    throw UserError(fmt::format("{}: tensor {}: {}", owner, in_quotes(name), reason));
  };
  if (!entry.is_object())
    fail(fmt::format("expected an object of dtype, shape and data_offsets, got {}", shown_json(entry)));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) fail(fmt::format("{} is missing", key));
  }
  if (entry.size() != 3) fail("expected only dtype, shape and data_offsets");

  TensorInfo tensor;
  tensor.name = name;
  const json& dtype = entry["dtype"];
  const auto known = dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) fail(fmt::format("dtype {} is not supported; expected one of {}", shown_json(dtype), dtype_names()));
  tensor.dtype = *known;

  const json& shape = entry["shape"];
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) {
    fail(fmt::format("shape {} is not a list of non-negative integers", shown_json(shape)));
  }
  for (const json& size : shape) tensor.shape.push_back(size.get<int64_t>());

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) || !is_count(offsets[1])) {
    fail(fmt::format("data_offsets {} is not a pair of non-negative integers", shown_json(offsets)));
  }
  tensor.begin = offsets[0].get<uint64_t>();
  tensor.end = offsets[1].get<uint64_t>();
  if (tensor.begin > tensor.end) fail(fmt::format("data_offsets {} end before they begin", shown_json(offsets)));
  if (tensor.end > data_bytes) {
    fail(fmt::format("data_offsets {} reach beyond the {} bytes of data: the file is truncated or its header lies",
                     shown_json(offsets), data_bytes));
  }
  const auto bytes = shape_bytes(tensor.shape, tensor.dtype);
  if (!bytes) fail(fmt::format("shape {} overflows", shown_json(shape)));
  if (*bytes != tensor.end - tensor.begin) {
    fail(fmt::format("shape {} of {} takes {} bytes, but data_offsets {} span {}", shown_json(shape),
                     row(tensor.dtype).name, *bytes, shown_json(offsets), tensor.end - tensor.begin));
  }
  return tensor;
}

Metadata parse_metadata(const json& entry, const std::string& owner) {
  if (!entry.is_object())
    throw UserError(fmt::format("{}: __metadata__ is {}, expected an object", owner, shown_json(entry)));
  Metadata metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      throw UserError(
          fmt::format("{}: __metadata__ key {} is {}, expected a string", owner, in_quotes(key), shown_json(value)));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

// Sorted by their bytes, the tensors must follow each other without overlap or hole from the first byte to the last.
void check_layout(std::span<const TensorInfo> tensors, uint64_t data_bytes, const std::string& owner) {
  uint64_t end = 0;
  std::string_view previous;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < end) {
      throw UserError(fmt::format("{}: tensor {}: its bytes [{}, {}) overlap those of tensor {}, which end at {}",
                                  owner, in_quotes(tensor.name), tensor.begin, tensor.end, in_quotes(previous), end));
    }
    if (tensor.begin > end) {
      throw UserError(fmt::format("{}: tensor {}: begins at byte {}, which leaves a hole after byte {}", owner,
                                  in_quotes(tensor.name), tensor.begin, end));
    }
    end = tensor.end;
    previous = tensor.name;
  }
  if (end == data_bytes) return;
  throw UserError(fmt::format("{}: the data end {} bytes after the last tensor {}", owner, data_bytes - end,
                              previous.empty() ? "(there is none)" : in_quotes(previous)));
}

std::string_view header_text(std::span<const std::byte> bytes, const std::string& owner) {
  if (bytes.size() < kLengthBytes) {
    throw UserError(fmt::format("{}: {} bytes are too short for a safetensors file", owner, bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    throw UserError(
        fmt::format("{}: a header of {} bytes, expected at most {}: not a safetensors file, or a damaged one", owner,
                    length, kMaxHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    throw UserError(fmt::format("{}: a header of {} bytes in a file of {}: truncated, or not a safetensors file", owner,
                                length, bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) {
    throw UserError(fmt::format("{}: the header does not begin with a brace: not a safetensors file", owner));
  }
  return text;
}

template <class From, class Convert>
void convert(std::span<const std::byte> bytes, std::span<float> out, Convert&& to_float) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = to_float(value);
  }
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return row(dtype).name; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::size_t dtype_bytes(Dtype dtype) { return row(dtype).bytes; }

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t TensorInfo::elements() const { return static_cast<int64_t>((end - begin) / dtype_bytes(dtype)); }

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file = MappedFile::open(path);
  SafetensorsFile parsed = from_bytes(file.bytes(), path.string());
  parsed.file_ = std::move(file);
  return parsed;
}

SafetensorsFile SafetensorsFile::from_bytes(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  const std::string_view text = header_text(bytes, file.name_);
  file.data_ = bytes.subspan(kLengthBytes + text.size());
  const json header = parse_strict_json(text, file.name_);
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      file.metadata_ = parse_metadata(entry, file.name_);
    } else {
      file.tensors_.push_back(parse_tensor(key, entry, file.data_.size(), file.name_));
    }
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(file.tensors_, file.data_.size(), file.name_);
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) file.index_.emplace(file.tensors_[i].name, i);
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view tensor) const {
  const auto found = index_.find(tensor);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& SafetensorsFile::require(std::string_view tensor) const {
  const TensorInfo* found = find(tensor);
  if (found == nullptr) throw UserError(fmt::format("{}: tensor {} is missing", name_, in_quotes(tensor)));
  return *found;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return data_.subspan(tensor.begin, tensor.end - tensor.begin);
}

std::vector<float> SafetensorsFile::read_f32(const TensorInfo& tensor) const {
  std::vector<float> values(tensor.elements());
  read_f32(tensor, 0, values);
  return values;
}

void SafetensorsFile::read_f32(const TensorInfo& tensor, int64_t first, std::span<float> out) const {
  KV_CHECK(first >= 0 && first <= tensor.elements());
  KV_CHECK(static_cast<int64_t>(out.size()) <= tensor.elements() - first);
  const auto source = bytes(tensor).subspan(first * dtype_bytes(tensor.dtype));
  switch (tensor.dtype) {
    case Dtype::kF32:
      if (!out.empty()) std::memcpy(out.data(), source.data(), out.size_bytes());
      return;
    case Dtype::kF16:
      return convert<uint16_t>(source, out, f16_to_f32);
    case Dtype::kBF16:
      return convert<uint16_t>(source, out, bf16_to_f32);
    case Dtype::kF64:
      return convert<double>(source, out, [](double value) { return static_cast<float>(value); });
    default:
      throw UserError(fmt::format("{}: tensor {}: dtype {}, expected F32, F16, BF16 or F64", name_,
                                  in_quotes(tensor.name), dtype_name(tensor.dtype)));
  }
}

std::vector<int32_t> SafetensorsFile::read_i32(const TensorInfo& tensor) const {
  if (tensor.dtype != Dtype::kI32 && tensor.dtype != Dtype::kI64) {
    throw UserError(fmt::format("{}: tensor {}: dtype {}, expected I32 or I64", name_, in_quotes(tensor.name),
                                dtype_name(tensor.dtype)));
  }
  const auto source = bytes(tensor);
  std::vector<int32_t> values(tensor.elements());
  if (tensor.dtype == Dtype::kI32) {
    if (!values.empty()) std::memcpy(values.data(), source.data(), source.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    int64_t wide = 0;
    std::memcpy(&wide, source.data() + i * sizeof wide, sizeof wide);
    if (!std::in_range<int32_t>(wide)) {
      throw UserError(fmt::format("{}: tensor {}: element {} is {}, which does not fit 32 bits", name_,
                                  in_quotes(tensor.name), i, wide));
    }
    values[i] = static_cast<int32_t>(wide);
  }
  return values;
}

void check_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  const char* what = std::filesystem::is_directory(status) ? "a folder" : "a device, pipe or socket";
  throw UserError(fmt::format("{}: cannot create: it is {}, expected a file or a new name", path.string(), what));
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorDecl> tensors, Metadata metadata)
    : path_(std::move(path)), metadata_(std::move(metadata)), written_(tensors.size(), 0) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorDecl& a, const TensorDecl& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  uint64_t begin = 0;
  for (TensorDecl& decl : tensors) {
    const auto bytes = shape_bytes(decl.shape, decl.dtype);
    KV_CHECK(bytes.has_value() && decl.name != "__metadata__");
    KV_CHECK(index_.emplace(decl.name, tensors_.size()).second);
    tensors_.push_back({std::move(decl.name), decl.dtype, std::move(decl.shape), begin, begin + *bytes});
    begin += *bytes;
  }
  header_bytes_ = header().size();

  check_replaceable(path_);
  for (int attempt = 0; file_ < 0; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) fail("create", errno);
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

std::string SafetensorsWriter::header() const {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  for (const TensorInfo& tensor : tensors_) {
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + text;
}

void SafetensorsWriter::write(std::string_view tensor, std::span<const std::byte> bytes) {
  const auto found = index_.find(tensor);
  KV_CHECK(file_ >= 0 && found != index_.end());
  const TensorInfo& info = tensors_[found->second];
  uint64_t& written = written_[found->second];
  KV_CHECK(bytes.size() <= info.end - info.begin - written);
  write_at(header_bytes_ + info.begin + written, bytes);
  written += bytes.size();
}

void SafetensorsWriter::set_metadata(const std::string& key, const std::string& value) {
  const auto found = metadata_.find(key);
  KV_CHECK(found != metadata_.end() && found->second.size() == value.size());
  found->second = value;
}

void SafetensorsWriter::finish() {
  KV_CHECK(file_ >= 0);
  for (std::size_t i = 0; i < tensors_.size(); ++i) KV_CHECK(written_[i] == tensors_[i].end - tensors_[i].begin);
  const std::string head = header();
  KV_CHECK(head.size() == header_bytes_);
  write_at(0, std::as_bytes(std::span(head)));
  if (::fsync(file_) != 0) fail("write", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", errno);
  ::close(std::exchange(file_, -1));

  // Without this the new name itself may be lost with the power. Some file systems cannot sync a folder: not an error.
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

void SafetensorsWriter::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("write", count < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(count);
    offset += count;
  }
}

void SafetensorsWriter::fail(std::string_view action, int error) const {
  throw UserError(fmt::format("{}: cannot {}: {}", path_.string(), action, std::generic_category().message(error)));
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors, Metadata metadata) {
  std::vector<TensorDecl> decls;
  for (const TensorData& tensor : tensors) decls.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, std::move(decls), std::move(metadata));
  for (const TensorData& tensor : tensors) {
    const auto bytes = shape_bytes(tensor.shape, tensor.dtype);
    writer.write(tensor.name, {static_cast<const std::byte*>(tensor.data), static_cast<std::size_t>(*bytes)});
  }
  writer.finish();
}

}  // namespace kv
