#pragma once

namespace kv::ref {

// Cases that want much of a GPU's memory take turns: shards of the tests run side by side on one GPU, where these would
// not fit together. A turn is taken when it is made, which may have to wait, and is over with its object. Declare it
// before the backend, whose end gives the memory back. Throws std::system_error.
class MemoryTurn {
 public:
  MemoryTurn();
  ~MemoryTurn();
  MemoryTurn(const MemoryTurn&) = delete;
  MemoryTurn& operator=(const MemoryTurn&) = delete;

 private:
  int file_;
};

}  // namespace kv::ref
