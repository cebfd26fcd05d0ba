#pragma once

#include <cstddef>
#include <vector>

namespace kv::cuda {

// Scratch memory of a recording (kernels/cuda/record.cuh): every run uses the same addresses, in stream order, so a
// block that one op gave back serves the next. Freed with the recording.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(size_t bytes);
  void give_back(void* data);
  bool is_idle() const;

 private:
  struct Block {
    void* data;
    size_t bytes;
    bool in_use;
  };
  std::vector<Block> blocks_;
};

}  // namespace kv::cuda
