#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>

#include "kernels/backend.h"

namespace kv::ref {

// Cases for a GPU alone that want much of its memory. They take turns: shards of the tests run side by side on one GPU,
// where these would not fit together.
class LargeOnCuda : public ::testing::Test {
 protected:
  LargeOnCuda();
  ~LargeOnCuda() override;

  // Waits for the turn, in SetUp; skips the case where there is no GPU, or less than `needed` bytes are free.
  void take_gpu(size_t needed);

 private:
  class Turn;
  std::unique_ptr<Turn> turn_;  // outlives the backend, whose end gives the memory back

 protected:
  std::unique_ptr<Backend> backend_;
};

}  // namespace kv::ref
