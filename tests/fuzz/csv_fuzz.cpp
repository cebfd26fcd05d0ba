#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "harness/rows.h"
#include "kernels/check.h"
#include "kernels/error.h"

namespace {

// Values are written with nine digits, so those of a foreign file may change once, by half of the ninth.
void check_survival(const kv::RowTable& read, kv::RowTable again) {
  KV_CHECK(again.rows.size() == read.rows.size());
  for (std::size_t i = 0; i < read.rows.size(); ++i) {
    const std::optional<double> value = read.rows[i].value;
    KV_CHECK(again.rows[i].value.has_value() == value.has_value());
    if (value) {
      constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
      KV_CHECK(std::abs(*again.rows[i].value - *value) <= 5e-9 * std::abs(*value) + kSmallest);
    }
    again.rows[i].value = value;
  }
  KV_CHECK(again == read);
}

}  // namespace

// Any bytes are either refused with one line or read. What was read survives being written and read again; what was
// written once is written alike for ever.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kv::RowTable table;
  try {
    table = kv::parse_rows({reinterpret_cast<const char*>(data), size}, "fuzz.csv");
  } catch (const kv::UserError& error) {
    KV_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return 0;
  }
  const std::string written = kv::format_rows(table.axes, table.rows);
  const kv::RowTable again = kv::parse_rows(written, "again.csv");
  check_survival(table, again);
  KV_CHECK(kv::format_rows(again.axes, again.rows) == written);
  return 0;
}
