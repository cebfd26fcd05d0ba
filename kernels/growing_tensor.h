#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/element.h"

namespace kv {

// Owns backend memory that grows without a second copy of what it holds. What is new is poisoned, as a Tensor's.
class GrowingTensor {
 public:
  GrowingTensor() = default;
  GrowingTensor(GrowingTensor&& other) noexcept;
  GrowingTensor& operator=(GrowingTensor&& other) noexcept;

  // At least so many elements; the old ones stay, but may lie elsewhere.
  void grow(Backend& backend, DType dtype, int64_t elements);

  Ref ref() { return {data_, dtype_}; }
  ConstRef ref() const { return {data_, dtype_}; }
  DType dtype() const { return dtype_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::unique_ptr<GrowingMemory> memory_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t elements_ = 0;
};

}  // namespace kv
