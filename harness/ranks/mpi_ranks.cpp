#include "harness/ranks/mpi_ranks.h"

#if KVLAB_MPI

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "harness/failure.h"
#include "harness/notice.h"
#include "harness/ranks/mpi_attendant.h"
#include "kernels/check.h"

// MPI ends the program where one of its calls fails, so that none is checked here.

namespace kv {
namespace {

// The first rank's memory, which the others reach without its help, as MPI-3 has it. To free it all must be there:
// where some are lost it stays.
class MpiCounts final : public SharedCounts {
 public:
  MpiCounts(MPI_Comm ranks, bool is_first, int number, const bool& lost_some) : lost_some_(lost_some) {
    const MPI_Aint bytes = is_first ? number * static_cast<MPI_Aint>(sizeof(int64_t)) : 0;
    int64_t* mine = nullptr;
    MPI_Win_allocate(bytes, sizeof(int64_t), MPI_INFO_NULL, ranks, &mine, &window_);
    MPI_Win_lock_all(0, window_);
    if (is_first) std::fill_n(mine, number, 0);
    MPI_Win_sync(window_);
    MPI_Barrier(ranks);
  }
  ~MpiCounts() override {
    if (lost_some_) return;
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
  }
  MpiCounts(const MpiCounts&) = delete;
  MpiCounts& operator=(const MpiCounts&) = delete;

  int64_t add(int count, int64_t amount) override {
    int64_t before = 0;
    MPI_Fetch_and_op(&amount, &before, MPI_INT64_T, 0, count, MPI_SUM, window_);
    MPI_Win_flush(0, window_);
    return before;
  }

 private:
  const bool& lost_some_;
  MPI_Win window_ = MPI_WIN_NULL;
};

constexpr const char* kPatience = "KVLAB_RANK_PATIENCE";  // how long a rank may be silent, in seconds

// 0 where the variable says none.
double patience_of(const char* text) {
  if (!text) return 30;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  return end != text && *end == '\0' && seconds >= 1 && seconds <= 86400 ? seconds : 0;
}

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (size_ > 1 && provided < MPI_THREAD_MULTIPLE) {
      refuse("this MPI does not allow calls from several threads, which kvlab needs (MPI_THREAD_MULTIPLE)");
    }
    double patience = patience_of(std::getenv(kPatience));
    MPI_Bcast(&patience, 1, MPI_DOUBLE, 0, ranks_);
    if (patience == 0) refuse(fmt::format("{}: expected seconds from 1 to 86400", kPatience));
    members_.resize(static_cast<size_t>(size_));
    std::iota(members_.begin(), members_.end(), 0);
    if (size_ > 1) attendant_ = std::make_unique<MpiAttendant>(patience);
  }
  // From here on a launcher's signal is no interruption: it ends the others as soon as one has left with a code that is
  // not 0, and what was wrong has been said. MPI would wait for those that are lost.
  ~MpiRanks() override {
    if (attendant_) std::signal(SIGTERM, SIG_IGN);
    attendant_.reset();
    if (!lost_some_) MPI_Finalize();
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int number_of(int rank) const override { return members_[static_cast<size_t>(rank)]; }

  std::vector<std::string> gather(const std::string& text) override {
    std::vector<int> lengths(static_cast<size_t>(size_)), starts(lengths.size());
    const int length = static_cast<int>(text.size());
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, ranks_);
    std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
    std::string all(static_cast<size_t>(starts.back() + lengths.back()), '\0');
    MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, ranks_);
    std::vector<std::string> texts;
    for (size_t r = 0; r < lengths.size(); ++r) {
      texts.push_back(all.substr(static_cast<size_t>(starts[r]), static_cast<size_t>(lengths[r])));
    }
    return texts;
  }

  std::unique_ptr<SharedCounts> counts(int number) override {
    return std::make_unique<MpiCounts>(ranks_, is_first(), number, lost_some_);
  }

  std::vector<int> silent() override {
    std::vector<int> found;
    if (!attendant_) return found;
    for (const int process : attendant_->silent()) {
      found.push_back(static_cast<int>(std::find(members_.begin(), members_.end(), process) - members_.begin()));
    }
    return found;
  }

  void bear_silence(bool borne) override {
    if (attendant_) attendant_->bear_silence(borne);
  }

  void leave_out(const std::vector<int>& silent) override {
    std::vector<int> gone, left;
    for (int r = 0; r < size_; ++r) {
      const bool is_silent = std::find(silent.begin(), silent.end(), r) != silent.end();
      (is_silent ? gone : left).push_back(members_[static_cast<size_t>(r)]);
    }
    if (std::find(silent.begin(), silent.end(), rank_) != silent.end()) MpiAttendant::end_left_out();
    attendant_->leave_out(gone);
    attendant_->bear_silence(false);  // one more that dies would be waited for
    MPI_Group world = MPI_GROUP_NULL, others = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, static_cast<int>(left.size()), left.data(), &others);
    MPI_Comm_create_group(MPI_COMM_WORLD, others, 0, &ranks_);  // asks for nobody else's presence
    MPI_Comm_rank(ranks_, &rank_);
    MPI_Comm_size(ranks_, &size_);
    members_ = left;
    lost_some_ = true;
  }

  // Each rank adds up a share of the values in the order of ranks, which MPI's own sums promise no order of.
  void add_up(std::span<double> values) override {
    const auto ranks = static_cast<int64_t>(size_), count = std::ssize(values);
    KV_CHECK(count <= std::numeric_limits<int>::max());
    std::vector<int> starts, lengths;
    for (int64_t r = 0; r < ranks; ++r) {
      starts.push_back(static_cast<int>(count * r / ranks));
      lengths.push_back(static_cast<int>(count * (r + 1) / ranks) - starts.back());
    }
    const int mine = lengths[static_cast<size_t>(rank_)];
    std::vector<int> received_lengths(lengths.size(), mine), received_starts;
    for (int64_t r = 0; r < ranks; ++r) received_starts.push_back(static_cast<int>(r) * mine);
    received_.resize(static_cast<size_t>(ranks * mine));
    MPI_Alltoallv(values.data(), lengths.data(), starts.data(), MPI_DOUBLE, received_.data(), received_lengths.data(),
                  received_starts.data(), MPI_DOUBLE, ranks_);
    sums_.assign(static_cast<size_t>(mine), 0.0);
    for (int64_t r = 0; r < ranks; ++r) {
      const double* of_rank = received_.data() + r * mine;
      for (int i = 0; i < mine; ++i) sums_[static_cast<size_t>(i)] += of_rank[i];
    }
    MPI_Allgatherv(sums_.data(), mine, MPI_DOUBLE, values.data(), lengths.data(), starts.data(), MPI_DOUBLE, ranks_);
  }

  [[noreturn]] void end_all(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::exit(exit_code);
  }

 private:
  // What all find, before they can agree.
  [[noreturn]] void refuse(const std::string& message) const {
    if (is_first()) notice("kvlab: " + message);
    MPI_Finalize();
    throw SaidElsewhere(2);
  }

  MPI_Comm ranks_ = MPI_COMM_WORLD;  // those that are not lost
  int rank_ = 0, size_ = 1;
  std::vector<int> members_;  // numbers in MPI_COMM_WORLD
  bool lost_some_ = false;
  std::unique_ptr<MpiAttendant> attendant_;  // of several
  // Of add_up(); new memory for each sum would take longer than the sum.
  std::vector<double> received_, sums_;
};

}  // namespace

bool is_built_with_mpi() { return true; }

std::unique_ptr<Ranks> join_mpi_ranks() { return std::make_unique<MpiRanks>(); }

}  // namespace kv

#else

namespace kv {

bool is_built_with_mpi() { return false; }

std::unique_ptr<Ranks> join_mpi_ranks() { return nullptr; }

}  // namespace kv

#endif
