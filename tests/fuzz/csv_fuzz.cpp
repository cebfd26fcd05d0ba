#include <cstddef>
#include <cstdint>
#include <string_view>

#include "harness/rows.h"
#include "kernels/check.h"
#include "kernels/error.h"

// Any bytes are either refused with one line or read, and what was read survives being written and read again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kv::RowTable table;
  try {
    table = kv::parse_rows({reinterpret_cast<const char*>(data), size}, "fuzz.csv");
  } catch (const kv::UserError& error) {
    KV_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return 0;
  }
  KV_CHECK(kv::parse_rows(kv::format_rows(table.axes, table.rows), "again.csv") == table);
  return 0;
}
