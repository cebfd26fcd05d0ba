#include "sim/model/footprint.h"

#include <fmt/format.h>

#include "kernels/error.h"

namespace kv {

std::string bytes_text(size_t bytes) {
  if (bytes < 1'000'000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

void require_memory(const Backend& backend, const Footprint& footprint, std::string_view owner) {
  const Memory memory = backend.memory();
  if (footprint.total() <= memory.free) return;
  std::string parts;
  const auto add = [&](const char* name, size_t bytes) {
    if (bytes > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, bytes_text(bytes));
  };
  add("weights", footprint.weights);
  add("KV cache", footprint.cache);
  add("activations", footprint.activations);
  throw MemoryError(fmt::format("{} does not fit: it needs {} ({}), and {} of {} are free on {}", owner,
                                bytes_text(footprint.total()), parts, bytes_text(memory.free), bytes_text(memory.total),
                                backend.name()));
}

}  // namespace kv
