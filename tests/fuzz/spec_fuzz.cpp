// Any bytes are either a spec or a UserError: no crash, no hang, no other exception.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "harness/spec/grid.h"
#include "harness/spec/spec_reader.h"
#include "kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > (size_t{1} << 16)) return 0;
  try {
    const kv::Spec spec = kv::parse_spec({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
    kv::parse_spec(spec.resolved, "fuzz.yaml");
    size_t points = 1;
    for (const kv::Axis& axis : spec.axes) points *= axis.points.size();
    if (points * spec.policies.size() * (spec.data.size() + 1) < 256) kv::make_grid(spec);
  } catch (const kv::UserError&) {
  }
  return 0;
}
