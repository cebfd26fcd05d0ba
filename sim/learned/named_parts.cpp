#include "sim/learned/named_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv {

namespace {

constexpr int64_t kSlopesATask = 1 << 14;

}  // namespace

NamedParts::Place NamedParts::place(std::string_view name, int64_t owner) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].name == name) return {layout_.first(i, owner), parts_[i].elements()};
  }
  KV_CHECK(false);
}

int64_t NamedParts::owners(std::string_view name) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].name == name) return layout_.owners(i);
  }
  return 0;
}

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
  int64_t all = 0;
  for_each_owner(name, [&](int64_t, int64_t, int64_t count) { all += count; });
  std::vector<float> of_owners;
  of_owners.reserve(static_cast<size_t>(all));
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

void NamedParts::add(std::string_view name, std::span<const float> of_owners, std::span<double> gradient) const {
  KV_CHECK(std::ssize(gradient) == elements());
  if (of_owners.empty()) return;
  const int64_t count = place(name, 0).count, owners = std::ssize(of_owners) / count;
  cpu::parallel_blocks(owners, std::max<int64_t>(1, kSlopesATask / count), [&](int64_t first, int64_t end) {
    for (int64_t owner = first; owner < end; ++owner) {
      double* sums = of_owner(name, owner, gradient).data();
      const float* slopes = of_owners.data() + owner * count;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[i] += slopes[i];
    }
  });
}

}  // namespace kv
