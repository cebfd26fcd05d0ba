#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/check.h"

namespace kv {

enum class DType : uint8_t { kF32, kBF16, kI32, kU8 };

constexpr size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

// A pointer into backend memory that knows its element type. Never owns; valid while its Tensor lives.
struct ConstRef {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  template <class T>
  const T* as() const {
    KV_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<const T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
};

struct Ref {
  void* data = nullptr;
  DType dtype = DType::kF32;

  template <class T>
  T* as() const {
    KV_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  operator ConstRef() const { return {data, dtype}; }  // NOLINT: reading what one may write is always fine
};

}  // namespace kv
