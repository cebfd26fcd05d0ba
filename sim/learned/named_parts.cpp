#include "sim/learned/named_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/check.h"

namespace kv {

// visit(first among all parameters, first among the part's, count)
template <class Visit>
void NamedParts::for_each_owner(std::string_view name, const Visit& visit) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].name != name) continue;
    const int64_t count = parts_[i].elements();
    for (int64_t owner = 0; owner < layout_.owners(i); ++owner) visit(layout_.first(i, owner), owner * count, count);
  }
}

std::vector<float> NamedParts::read(std::string_view name, std::span<const float> parameters) const {
  KV_CHECK(std::ssize(parameters) == elements());
  std::vector<float> of_owners;
  for_each_owner(name, [&](int64_t from, int64_t, int64_t count) {
    of_owners.insert(of_owners.end(), parameters.begin() + from, parameters.begin() + from + count);
  });
  return of_owners;
}

void NamedParts::write(std::string_view name, std::span<const float> of_owners, std::span<float> parameters) const {
  KV_CHECK(std::ssize(parameters) == elements());
  for_each_owner(name, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(of_owners.begin() + from, count, parameters.begin() + to);
  });
}

std::string NamedParts::place_of(int64_t parameter) const {
  for (const LearnedPart& part : parts_) {
    std::string place;
    for_each_owner(part.name, [&](int64_t first, int64_t in_part, int64_t count) {
      if (parameter < first || parameter >= first + count) return;
      const int64_t owner = in_part / count;
      if (part.scope == LearnedScope::kHead) {
        place = fmt::format("layer {}, KV head {}: {}", owner / kv_heads_, owner % kv_heads_, part.name);
      } else {
        place = part.scope == LearnedScope::kLayer ? fmt::format("layer {}: {}", owner, part.name) : part.name;
      }
    });
    if (!place.empty()) return place;
  }
  KV_CHECK(false);
}

void NamedParts::add(std::string_view name, std::span<const double> of_owners, std::span<double> gradient) const {
  KV_CHECK(std::ssize(gradient) == elements());
  for_each_owner(name, [&](int64_t to, int64_t from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      gradient[static_cast<size_t>(to + i)] += of_owners[static_cast<size_t>(from + i)];
    }
  });
}

}  // namespace kv
