#include "sim/learned/learned_part.h"

#include "kernels/check.h"

namespace kv {

int64_t LearnedPart::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t elements_of(std::span<const LearnedPart> parts, LearnedScope scope) {
  int64_t count = 0;
  for (const LearnedPart& part : parts) count += part.scope == scope ? part.elements() : 0;
  return count;
}

LearnedLayout::LearnedLayout(std::span<const LearnedPart> parts, int layers, int kv_heads)
    : layers_(layers),
      kv_heads_(kv_heads),
      of_model_(elements_of(parts, LearnedScope::kModel)),
      of_layer_(elements_of(parts, LearnedScope::kLayer)),
      of_head_(elements_of(parts, LearnedScope::kHead)) {
  for (size_t i = 0; i < parts.size(); ++i) {
    scopes_.push_back(parts[i].scope);
    before_.push_back(elements_of(parts.first(i), parts[i].scope));
  }
}

int64_t LearnedLayout::elements() const { return of_model_ + layers_ * layer_elements(); }

int64_t LearnedLayout::owners(size_t part) const {
  switch (scopes_[part]) {
    case LearnedScope::kModel:
      return 1;
    case LearnedScope::kLayer:
      return layers_;
    case LearnedScope::kHead:
      return layers_ * kv_heads_;
  }
  return 0;
}

int64_t LearnedLayout::first(size_t part, int64_t owner) const {
  KV_CHECK(owner >= 0 && owner < owners(part));
  switch (scopes_[part]) {
    case LearnedScope::kModel:
      return before_[part];
    case LearnedScope::kLayer:
      return of_model_ + owner * layer_elements() + before_[part];
    case LearnedScope::kHead:
      return of_model_ + owner / kv_heads_ * layer_elements() + of_layer_ + owner % kv_heads_ * of_head_ +
             before_[part];
  }
  return 0;
}

}  // namespace kv
