#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/error.h"
#include "sim/io/safetensors.h"

// Any bytes are either a file whose every tensor can be read or a UserError; nothing else may happen.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const auto file = kv::SafetensorsFile::from_bytes(std::as_bytes(std::span(data, size)), "fuzz");
    for (const kv::TensorInfo& tensor : file.tensors()) {
      try {
        (void)file.read_f32(tensor);
      } catch (const kv::UserError&) {
        (void)file.read_i32(tensor);
      }
    }
  } catch (const kv::UserError&) {
  }
  return 0;
}
