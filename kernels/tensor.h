#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/check.h"

namespace kv {

class Backend;

enum class DType : uint8_t { f32, bf16, i32, u8 };

constexpr size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

// A pointer into backend memory that knows its element type. Never owns; valid while its Tensor lives.
struct ConstRef {
  const void* data = nullptr;
  DType dtype = DType::f32;

  template <class T>
  const T* as() const {
    KV_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<const T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
};

struct Ref {
  void* data = nullptr;
  DType dtype = DType::f32;

  template <class T>
  T* as() const {
    KV_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  operator ConstRef() const { return {data, dtype}; }  // NOLINT: reading what one may write is always fine
};

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
  void fill_zero();
  void upload(const void* host, size_t bytes);
  void download(void* host, size_t bytes) const;

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  int64_t elements_ = 0;
};

}  // namespace kv
