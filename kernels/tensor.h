#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/element.h"
#include "kernels/slots.h"

namespace kv {

class Backend;
class Download;

// Owns contiguous row-major backend memory. Fresh memory is poisoned (every byte 0xFF: NaN for floats, -1 for i32),
// so a kernel that reads what nobody wrote shows at once.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Backend& backend, DType dtype, int64_t elements);
  ~Tensor();
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Ref ref() { return {data_, dtype_}; }
  ConstRef ref() const { return {data_, dtype_}; }
  Ref at(int64_t element);
  ConstRef at(int64_t element) const;
  int64_t elements() const { return elements_; }
  size_t bytes() const { return static_cast<size_t>(elements_) * bytes_of(dtype_); }
  DType dtype() const { return dtype_; }
  explicit operator bool() const { return data_ != nullptr; }

  // Makes room for at least `elements`; the contents are lost (and poisoned) when it has to grow.
  void reserve(Backend& backend, DType dtype, int64_t elements);
  // All of it as rows of `pitch` numbers.
  template <class T>
  Slots<T> slots(int64_t pitch) {
    return {ref().as<T>(), elements_ / pitch, pitch};
  }
  template <class T>
  Slots<const T> slots(int64_t pitch) const {
    return {ref().as<T>(), elements_ / pitch, pitch};
  }
  // reserve() for `rows` rows of `pitch` numbers, as which it then is seen.
  template <class T>
  Slots<T> reserve_slots(Backend& backend, int64_t rows, int64_t pitch) {
    reserve(backend, DTypeOf<T>::value, rows * pitch);
    return {ref().as<T>(), rows, pitch};
  }
  void fill_zero();
  void upload(const void* host, size_t bytes);
  void download(void* host, size_t bytes) const;
  std::unique_ptr<Download> begin_download() const;  // of all of it

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t elements_ = 0;
};

}  // namespace kv
