#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kv {

// Who has parameters of its own: every KV head, every layer, for all of its heads, or the model, for all of its layers.
enum class LearnedScope : uint8_t { kHead, kLayer, kModel };

// A tensor of parameters that each of its owners has.
struct LearnedPart {
  std::string name;
  std::vector<int64_t> shape;  // of one owner's
  LearnedScope scope = LearnedScope::kHead;

  int64_t elements() const;  // of one owner's
  bool operator==(const LearnedPart&) const = default;
};

// Parameters of one owner of that scope.
int64_t elements_of(std::span<const LearnedPart> parts, LearnedScope scope = LearnedScope::kHead);

// Where the parameters of all layers and heads lie: first the model's, then layer by layer the layer's own and, head by
// head, the heads'. Those of one owner lie one behind the other, in the order of the parts: where all are of heads, as
// [layers, kv_heads, elements_of(parts)].
class LearnedLayout {
 public:
  LearnedLayout(std::span<const LearnedPart> parts, int layers, int kv_heads);

  int64_t elements() const;  // in all
  // Of a part: how many have it, in the order of layer · kv_heads + head, and where an owner's elements begin.
  int64_t owners(size_t part) const;
  int64_t first(size_t part, int64_t owner) const;

 private:
  int64_t layer_elements() const { return of_layer_ + kv_heads_ * of_head_; }

  std::vector<LearnedScope> scopes_;  // by part
  std::vector<int64_t> before_;       // by part: what its owner has before it
  int64_t layers_, kv_heads_;
  int64_t of_model_, of_layer_, of_head_;  // elements of one owner
};

}  // namespace kv
