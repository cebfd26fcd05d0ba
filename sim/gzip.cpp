#include "sim/gzip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <limits>
#include <new>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr int kGzipWindow = 15 + 16;  // the largest window; 16 asks zlib for gzip instead of its own wrapper
constexpr int kMemory = 9;            // the most, for the best matches

static_assert(kGzipLimit <= std::numeric_limits<uInt>::max(), "the input is handed to zlib in one piece");

void check_memory(int status) {
  if (status == Z_MEM_ERROR) throw std::bad_alloc();
}

struct Deflater {
  z_stream stream{};
  Deflater() {
    const int status = deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY);
    check_memory(status);
    KV_CHECK(status == Z_OK);
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream); }
};

struct Inflater {
  z_stream stream{};
  Inflater() {
    const int status = inflateInit2(&stream, kGzipWindow);
    check_memory(status);
    KV_CHECK(status == Z_OK);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream); }
};

void feed(z_stream& stream, std::string_view input) {
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));  // zlib reads it only
  stream.avail_in = static_cast<uInt>(input.size());
}

// Appends what `step`, deflate or inflate, makes of the input in one buffer's worth.
template <typename Step>
int append_step(z_stream& stream, std::string& out, Step step) {
  std::array<Bytef, 1 << 16> buffer;
  stream.next_out = buffer.data();
  stream.avail_out = static_cast<uInt>(buffer.size());
  const int status = step(&stream);
  check_memory(status);
  out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream.avail_out);
  return status;
}

[[noreturn]] void fail(std::string_view file, std::string_view what) {
  throw UserError(fmt::format("{}: {}", file, what));
}

}  // namespace

std::string gzip(std::string_view content, std::string_view file) {
  if (content.size() > kGzipLimit) fail(file, fmt::format("over {} bytes, too much to pack", kGzipLimit));
  Deflater deflater;
  feed(deflater.stream, content);
  std::string packed;
  int status = Z_OK;
  while (status == Z_OK) {
    status = append_step(deflater.stream, packed, [](z_stream* stream) { return deflate(stream, Z_FINISH); });
  }
  KV_CHECK(status == Z_STREAM_END);
  return packed;
}

std::string gunzip(std::string_view packed, std::string_view file, std::size_t limit) {
  if (packed.size() > kGzipLimit) fail(file, fmt::format("over {} bytes, too much to unpack", kGzipLimit));
  Inflater inflater;
  feed(inflater.stream, packed);
  std::string content;
  int status = Z_OK;
  while (status == Z_OK) {
    status = append_step(inflater.stream, content, [](z_stream* stream) { return inflate(stream, Z_NO_FLUSH); });
    if (content.size() > limit) fail(file, fmt::format("unpacks to more than {} bytes", limit));
  }
  if (status == Z_BUF_ERROR) fail(file, "truncated gzip, expected more bytes");
  if (status != Z_STREAM_END) {
    fail(file, fmt::format("broken gzip: {}", inflater.stream.msg != nullptr ? inflater.stream.msg : "not readable"));
  }
  if (inflater.stream.avail_in > 0) fail(file, "broken gzip: bytes after its end, expected one member");
  return content;
}

}  // namespace kv
