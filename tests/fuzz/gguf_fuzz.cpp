#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/error.h"
#include "sim/io/gguf.h"

// Any bytes are either a file whose every tensor can be read or a UserError; nothing else may happen.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const auto file = kv::GgufFile::from_bytes(std::as_bytes(std::span(data, size)), "fuzz");
    for (const auto& [key, value] : file.metadata()) (void)kv::shown(value);
    for (const kv::GgufTensor& tensor : file.tensors()) {
      std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
      file.read_f32(tensor, 0, values);
    }
  } catch (const kv::UserError&) {
  }
  return 0;
}
