#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "harness/protocols/unit.h"
#include "kernels/backend.h"
#include "sim/source/source.h"

namespace kv {

// Where replays of one batch of samples run, several at once: on the batch's own backend and source, and beside them on
// others of the same kind, which share the weights and are made when they are first needed.
class Lanes {
 public:
  // The samples are [first, first + count) of the batch's subject.
  Lanes(const UnitBatch& batch, int first, int count) : batch_(batch), first_(first), count_(count) {}

  // A lane, and nobody else's until it is destroyed.
  class Turn {
   public:
    explicit Turn(Lanes& lanes) : lanes_(lanes), lane_(lanes.take()) {}
    ~Turn() { lanes_.give_back(lane_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    Backend& backend() const { return *lane_.backend; }
    Source& source() const { return *lane_.source; }

   private:
    struct Lane {
      Backend* backend = nullptr;
      Source* source = nullptr;
    };
    friend class Lanes;

    Lanes& lanes_;
    Lane lane_;
  };

 private:
  struct Twin {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Source> source;  // after the backend, on which it lives
  };

  Turn::Lane take();
  void give_back(Turn::Lane lane);

  const UnitBatch& batch_;
  int first_, count_;
  std::mutex mutex_;
  bool own_is_free_ = true;
  std::vector<Twin> twins_;
  std::vector<Turn::Lane> free_twins_;
};

}  // namespace kv
