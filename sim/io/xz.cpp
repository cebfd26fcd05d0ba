#include "sim/io/xz.h"

#include <fmt/format.h>
#include <lzma.h>

#include <array>
#include <new>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr uint64_t kMemory = uint64_t{1} << 28;  // that unpacking may take; preset 9, the largest, takes a quarter

struct Stream {
  lzma_stream lzma = LZMA_STREAM_INIT;

  explicit Stream(std::string_view input) {
    lzma.next_in = reinterpret_cast<const uint8_t*>(input.data());
    lzma.avail_in = input.size();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { lzma_end(&lzma); }

  // Appends one buffer's worth.
  lzma_ret append_step(std::string& out) {
    std::array<uint8_t, 1 << 16> buffer;
    lzma.next_out = buffer.data();
    lzma.avail_out = buffer.size();
    const lzma_ret status = lzma_code(&lzma, LZMA_FINISH);
    if (status == LZMA_MEM_ERROR) throw std::bad_alloc();
    out.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - lzma.avail_out);
    return status;
  }
};

void start(lzma_ret status) {
  if (status == LZMA_MEM_ERROR) throw std::bad_alloc();
  KV_CHECK(status == LZMA_OK);
}

[[noreturn]] void fail(std::string_view file, std::string_view what) {
  throw UserError(fmt::format("{}: {}", file, what));
}

const char* reason(lzma_ret status) {
  switch (status) {
    case LZMA_FORMAT_ERROR:
      return "no xz file";
    case LZMA_OPTIONS_ERROR:
      return "made with options that are not supported";
    case LZMA_MEMLIMIT_ERROR:
      return "takes too much memory to unpack";
    default:
      return "its data is corrupt";
  }
}

}  // namespace

std::string xz(std::string_view content) {
  Stream stream(content);
  lzma_options_lzma options;
  KV_CHECK(!lzma_lzma_preset(&options, 6 | LZMA_PRESET_EXTREME));
  options.lc = LZMA_LCLP_MAX;  // text: what follows a letter depends on it, and on no alignment
  options.pb = 0;
  const std::array filters = {lzma_filter{LZMA_FILTER_LZMA2, &options}, lzma_filter{LZMA_VLI_UNKNOWN, nullptr}};
  start(lzma_stream_encoder(&stream.lzma, filters.data(), LZMA_CHECK_CRC64));
  std::string packed;
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) status = stream.append_step(packed);
  KV_CHECK(status == LZMA_STREAM_END);
  return packed;
}

std::string unxz(std::string_view packed, std::string_view file, std::size_t limit) {
  Stream stream(packed);
  start(lzma_stream_decoder(&stream.lzma, kMemory, 0));
  std::string content;
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    status = stream.append_step(content);
    if (content.size() > limit) fail(file, fmt::format("unpacks to more than {} bytes", limit));
  }
  if (status == LZMA_BUF_ERROR) fail(file, "truncated xz, expected more bytes");
  if (status != LZMA_STREAM_END) fail(file, fmt::format("broken xz: {}", reason(status)));
  if (stream.lzma.avail_in > 0) fail(file, "broken xz: bytes after its end, expected one stream");
  return content;
}

}  // namespace kv
