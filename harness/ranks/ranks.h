#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kv {

// Numbers that all ranks share, zero at first.
class SharedCounts {
 public:
  virtual ~SharedCounts() = default;
  // What the count was before: who adds 1 to take the next piece of work gets its number, and nobody else does.
  virtual int64_t add(int count, int64_t amount) = 0;
};

// The processes that an MPI launcher (mpirun, srun) started together for one command, or this one alone: then nothing
// of MPI is touched. Collective functions are called by all ranks, in the same order; each returns once all have
// called.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What a rank was when the launcher started it, as messages name it; it stays where others are left out.
  virtual int number_of(int rank) const = 0;
  bool is_first() const { return rank() == 0; }
  bool are_several() const { return size() > 1; }
  // Collective: what each says, in the order of ranks.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Collective. To add to them later asks for nobody's presence; they end before the ranks do.
  virtual std::unique_ptr<SharedCounts> counts(int number) = 0;
  // Collective, with equally many values: each becomes the sum of all ranks', added in their order.
  virtual void add_up(std::span<double> values) = 0;
  // Of the first rank: those that have given no sign of life for a while. Their process or machine has died, or stands
  // still, and the launcher lets the others live.
  virtual std::vector<int> silent() = 0;
  // Of the first rank: whether it asks for them and goes on without them. Otherwise they end all, with one line: who
  // waits for one that is gone would wait for ever. Where the first rank itself is silent all end in any case. No
  // longer so once some were left out.
  virtual void bear_silence(bool borne) = 0;
  // Collective of all others: they go on without these. Numbers close up; the first stays the first. A rank that finds
  // itself among the silent ones, since it lives after all, ends.
  virtual void leave_out(const std::vector<int>& silent) = 0;
  // Ends all ranks, wherever they are.
  [[noreturn]] virtual void end_all(int exit_code) = 0;
};

}  // namespace kv
