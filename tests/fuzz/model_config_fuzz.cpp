#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/error.h"
#include "sim/model/model_config.h"
#include "sim/model/rope_scaling.h"
#include "sim/model/weights.h"

// Any bytes are either a config from which frequencies and shapes follow or a UserError; nothing else may happen.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const auto config = kv::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
    (void)kv::make_rope(config.rope, config.head_dim);
    (void)kv::expected_tensors(config);
  } catch (const kv::UserError&) {
  }
  return 0;
}
