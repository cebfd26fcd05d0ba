#include "kernels/tensor.h"

#include <utility>

#include "kernels/backend.h"

namespace kv {

Tensor::Tensor(Backend& backend, DType dtype, int64_t elements)
    : backend_(&backend),
      data_(backend.allocate(static_cast<size_t>(elements) * bytes_of(dtype))),
      dtype_(dtype),
      elements_(elements) {}

Tensor::~Tensor() {
  if (data_) backend_->release(data_, bytes());
}

Tensor::Tensor(Tensor&& other) noexcept
    : backend_(other.backend_),
      data_(std::exchange(other.data_, nullptr)),
      dtype_(other.dtype_),
      elements_(std::exchange(other.elements_, 0)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(dtype_, other.dtype_);
  std::swap(elements_, other.elements_);
  return *this;
}

Ref Tensor::at(int64_t element) {
  KV_CHECK(element >= 0 && element <= elements_);
  return {static_cast<char*>(data_) + static_cast<size_t>(element) * bytes_of(dtype_), dtype_};
}

ConstRef Tensor::at(int64_t element) const {
  KV_CHECK(element >= 0 && element <= elements_);
  return {static_cast<const char*>(data_) + static_cast<size_t>(element) * bytes_of(dtype_), dtype_};
}

void Tensor::reserve(Backend& backend, DType dtype, int64_t elements) {
  if (data_ && dtype_ == dtype && elements_ >= elements) return;
  *this = Tensor(backend, dtype, elements);
}

void Tensor::fill_zero() {
  if (data_) backend_->fill_zero(data_, bytes());
}

void Tensor::upload(const void* host, size_t count) {
  KV_CHECK(count <= bytes());
  if (count) backend_->upload(data_, host, count);
}

void Tensor::download(void* host, size_t count) const {
  KV_CHECK(count <= bytes());
  if (count) backend_->download(host, data_, count);
}

std::unique_ptr<Download> Tensor::begin_download() const {
  KV_CHECK(data_);
  return backend_->begin_download(data_, bytes());
}

}  // namespace kv
