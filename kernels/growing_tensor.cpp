#include "kernels/growing_tensor.h"

#include <utility>

#include "kernels/check.h"

namespace kv {

GrowingTensor::GrowingTensor(GrowingTensor&& other) noexcept
    : memory_(std::move(other.memory_)),
      data_(std::exchange(other.data_, nullptr)),
      dtype_(other.dtype_),
      elements_(std::exchange(other.elements_, 0)) {}

GrowingTensor& GrowingTensor::operator=(GrowingTensor&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(dtype_, other.dtype_);
  std::swap(elements_, other.elements_);
  return *this;
}

void GrowingTensor::grow(Backend& backend, DType dtype, int64_t elements) {
  KV_CHECK(!data_ || dtype == dtype_);
  if (elements <= elements_) return;
  if (!memory_) memory_ = backend.growing_memory();
  data_ = memory_->grow(static_cast<size_t>(elements) * bytes_of(dtype));
  dtype_ = dtype;
  elements_ = elements;
}

}  // namespace kv
