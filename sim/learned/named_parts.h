#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/learned/learned_part.h"

namespace kv {

// Parameters a part at a time: [owners, elements], owners in the order of layer · kv_heads + head (LearnedLayout).
class NamedParts {
 public:
  NamedParts(std::vector<LearnedPart> parts, int layers, int kv_heads)
      : parts_(std::move(parts)), layout_(parts_, layers, kv_heads), kv_heads_(kv_heads) {}

  int64_t elements() const { return layout_.elements(); }
  int64_t owners(std::string_view name) const;  // 0 where there is no such part
  // Empty where there is no such part.
  std::vector<float> read(std::string_view name, std::span<const float> parameters) const;
  // An owner's of a part that there is, where they lie among all parameters or slopes.
  template <class T>
  std::span<T> of_owner(std::string_view name, int64_t owner, std::span<T> all) const {
    const auto [first, count] = place(name, owner);
    return all.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  }
  void write(std::string_view name, std::span<const float> of_owners, std::span<float> parameters) const;
  // Whose a parameter is, for complaints: "layer 3, KV head 1: hidden.weight".
  std::string place_of(int64_t parameter) const;
  // What each owner's slopes are, added to the gradient of all parameters.
  void add(std::string_view name, std::span<const float> of_owners, std::span<double> gradient) const;

 private:
  struct Place {
    int64_t first = 0, count = 0;
  };
  Place place(std::string_view name, int64_t owner) const;
  template <class Visit>
  void for_each_owner(std::string_view name, const Visit& visit) const;

  std::vector<LearnedPart> parts_;
  LearnedLayout layout_;
  int kv_heads_;
};

}  // namespace kv
