#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kv {

// A number a slot: rows of one layer, [rows, pitch], in backend memory. Rows are those of a PagedView (kernels/paged.h)
// or, where a row has a vector for each query head, row * group + head. Only a row's first `length` numbers mean
// anything; pitch is at least the longest length. Never owns.
template <class T>
struct Slots {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t pitch = 0;

  constexpr T* row(int64_t index) const { return data + index * pitch; }
  constexpr Slots from_row(int64_t index) const { return {row(index), rows - index, pitch}; }
  constexpr int64_t elements() const { return rows * pitch; }
  constexpr size_t bytes() const { return static_cast<size_t>(elements()) * sizeof(T); }
  constexpr explicit operator bool() const { return data != nullptr; }
  // Reading what one may write is always fine.
  template <class Const>
  // NOLINTNEXTLINE(google-explicit-constructor)
  requires(!std::is_const_v<T> && std::is_same_v<Const, const T>) constexpr operator Slots<Const>() const {
    return {data, rows, pitch};
  }
};

}  // namespace kv
