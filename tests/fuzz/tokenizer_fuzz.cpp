#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/error.h"
#include "sim/model/tokenizer/tokenizer.h"

// Whatever the file holds, reading it and using it ends in ids or in a UserError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view kText =
      "Hello, world! 12345 <|question|> don't  \n\tcaf\xC3\xA9 e\xCC\x81 ab.12 aaaaaaaaaaaaaaaab";
  try {
    const auto tokenizer = kv::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto ids = tokenizer.encode(kText);
    tokenizer.decode(ids);
  } catch (const kv::UserError&) {
  }
  return 0;
}
