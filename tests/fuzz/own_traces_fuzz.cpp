#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/tasks/own_traces.h"

// Any bytes give traces that are samples and are written as they were read, or a one-line UserError.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const kv::OwnFile file : {kv::OwnFile::kWhole, kv::OwnFile::kPartial}) {
    try {
      const kv::OwnTraces read = kv::parse_own_traces(text, "fuzz", file);
      for (const kv::OwnAttempt* trace : read.traces()) {
        for (const int tokens : {2, read.recipe.tokens}) {
          const kv::Sample sample = kv::sample_of(*trace, tokens);
          KV_CHECK(std::ssize(sample.ids) == tokens && sample.ids.size() == sample.labels.size());
          for (const int32_t id : sample.ids) KV_CHECK(id >= 0 && id < read.recipe.vocabulary);
        }
      }
      if (file == kv::OwnFile::kWhole) {
        KV_CHECK(kv::parse_own_traces(kv::format_own_traces(read), "again").attempts == read.attempts);
      }
    } catch (const kv::UserError& error) {
      const std::string what = error.what();
      KV_CHECK(!what.empty() && what.find('\n') == std::string::npos);
    }
  }
  return 0;
}
