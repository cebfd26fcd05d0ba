#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
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
  bool is_first() const { return rank() == 0; }
  bool are_several() const { return size() > 1; }
  // Collective: what each says, in the order of ranks.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Collective. To add to them later asks for nobody's presence; they end before the ranks do.
  virtual std::unique_ptr<SharedCounts> counts(int number) = 0;
  // Ends all ranks, wherever they are.
  [[noreturn]] virtual void end_all(int exit_code) = 0;
};

std::unique_ptr<Ranks> lone_rank();
// Those of this launch; once a process. UserError where several were launched and kvlab was built without MPI.
std::unique_ptr<Ranks> join_ranks();

// What another rank says already: this one ends without a word, with the exit code of a caller's mistake.
class SaidElsewhere : public std::exception {};

// Collective: does what may throw UserError on some ranks alone. Where it did, the first rank throws the first message,
// with the rank where not all failed, and all others SaidElsewhere: one line, whoever found the mistake.
void agree(Ranks& ranks, const std::function<void()>& work);
// Collective: UserError, as agree() has it, where ranks differ in it: "<what> differ: ...".
void require_same(Ranks& ranks, const std::string& what, const std::string& mine);
// Collective: UserError where a rank does not see what the first one writes to that folder, which is there for it.
void require_shared(Ranks& ranks, const std::filesystem::path& folder);

}  // namespace kv
