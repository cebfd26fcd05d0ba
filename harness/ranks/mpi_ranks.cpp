#include "harness/ranks/mpi_ranks.h"

#if KVLAB_MPI

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <thread>

#include "kernels/check.h"
#include "kernels/error.h"

// MPI ends the program where one of its calls fails, so that none is checked here.

namespace kv {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(1);

// The first rank's memory, which the others reach without its help, as MPI-3 has it.
class MpiCounts final : public SharedCounts {
 public:
  MpiCounts(MPI_Comm ranks, bool is_first, int number) {
    const MPI_Aint bytes = is_first ? number * static_cast<MPI_Aint>(sizeof(int64_t)) : 0;
    int64_t* mine = nullptr;
    MPI_Win_allocate(bytes, sizeof(int64_t), MPI_INFO_NULL, ranks, &mine, &window_);
    MPI_Win_lock_all(0, window_);
    if (is_first) std::fill_n(mine, number, 0);
    MPI_Win_sync(window_);
    MPI_Barrier(ranks);
  }
  ~MpiCounts() override {
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
  MPI_Win window_ = MPI_WIN_NULL;
};

// Where a network cannot add by itself, MPI does it when the process that owns the memory happens to call it, which
// may be in the middle of a long unit of work. This one calls it now and then.
class Attendant {
 public:
  Attendant() {
    MPI_Comm_dup(MPI_COMM_WORLD, &nobodys_);
    thread_ = std::thread([this] {
      while (!ended_) {
        int found = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, nobodys_, &found, MPI_STATUS_IGNORE);
        std::this_thread::sleep_for(kBetweenLooks);
      }
    });
  }
  ~Attendant() {
    ended_ = true;
    thread_.join();
    MPI_Comm_free(&nobodys_);
  }
  Attendant(const Attendant&) = delete;
  Attendant& operator=(const Attendant&) = delete;

 private:
  MPI_Comm nobodys_ = MPI_COMM_NULL;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (size_ > 1 && provided < MPI_THREAD_MULTIPLE) {
      MPI_Finalize();
      throw UserError("this MPI does not allow calls from several threads, which kvlab needs (MPI_THREAD_MULTIPLE)");
    }
    if (size_ > 1) attendant_ = std::make_unique<Attendant>();
  }
  // From here on a launcher's signal is no interruption: it ends the others as soon as one has left with a code that is
  // not 0, and what was wrong has been said.
  ~MpiRanks() override {
    if (size_ > 1) std::signal(SIGTERM, SIG_IGN);
    attendant_.reset();
    MPI_Finalize();
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> gather(const std::string& text) override {
    std::vector<int> lengths(static_cast<size_t>(size_)), starts(lengths.size());
    const int length = static_cast<int>(text.size());
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::exclusive_scan(lengths.begin(), lengths.end(), starts.begin(), 0);
    std::string all(static_cast<size_t>(starts.back() + lengths.back()), '\0');
    MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(), MPI_CHAR, MPI_COMM_WORLD);
    std::vector<std::string> texts;
    for (size_t r = 0; r < lengths.size(); ++r) {
      texts.push_back(all.substr(static_cast<size_t>(starts[r]), static_cast<size_t>(lengths[r])));
    }
    return texts;
  }

  std::unique_ptr<SharedCounts> counts(int number) override {
    return std::make_unique<MpiCounts>(MPI_COMM_WORLD, is_first(), number);
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
                  received_starts.data(), MPI_DOUBLE, MPI_COMM_WORLD);
    sums_.assign(static_cast<size_t>(mine), 0.0);
    for (int64_t r = 0; r < ranks; ++r) {
      const double* of_rank = received_.data() + r * mine;
      for (int i = 0; i < mine; ++i) sums_[static_cast<size_t>(i)] += of_rank[i];
    }
    MPI_Allgatherv(sums_.data(), mine, MPI_DOUBLE, values.data(), lengths.data(), starts.data(), MPI_DOUBLE,
                   MPI_COMM_WORLD);
  }

  [[noreturn]] void end_all(int exit_code) override {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::exit(exit_code);
  }

 private:
  int rank_ = 0, size_ = 1;
  std::unique_ptr<Attendant> attendant_;
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
