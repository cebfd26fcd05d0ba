#include "kernels/growing_tensor.h"

#include "kernels/check.h"

namespace kv {

void GrowingTensor::grow(Backend& backend, DType dtype, int64_t elements) {
  KV_CHECK(!data_ || dtype == dtype_);
  if (elements <= elements_) return;
  if (!memory_) memory_ = backend.growing_memory();
  data_ = memory_->grow(static_cast<size_t>(elements) * bytes_of(dtype));
  dtype_ = dtype;
  elements_ = elements;
}

}  // namespace kv
