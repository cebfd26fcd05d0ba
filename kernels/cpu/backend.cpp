#include "kernels/backend.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check_pages.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"
#include "kernels/every_op.h"

namespace kv {

namespace {

// Calls its work at each run, and holds it to what a recording may do.
class CpuRecording final : public Recording {
 public:
  CpuRecording(const std::function<void()>& work, const size_t& in_use, bool& running)
      : work_(work), in_use_(in_use), running_(running) {}
  void run() override {
    const size_t before = in_use_;
    running_ = true;
    try {
      work_();
    } catch (...) {
      running_ = false;
      throw;
    }
    running_ = false;
    KV_CHECK(in_use_ == before);
  }

 private:
  std::function<void()> work_;
  const size_t& in_use_;
  bool& running_;
};

// Ops run as they are asked for, so a moment is a reading of the clock.
class ClockMoment final : public Moment {
 public:
  double seconds_since(const Moment& earlier) const override {
    return std::chrono::duration<double>(time_ - static_cast<const ClockMoment&>(earlier).time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
};

// Nor is there anything to wait for: what was asked for is copied at once, for it may change.
class CopiedDownload final : public Download {
 public:
  explicit CopiedDownload(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> wait() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Bytes handed out.
struct MemoryUse {
  size_t now = 0;
  size_t peak = 0;

  void take(size_t bytes) {
    now += bytes;
    peak = std::max(peak, now);
  }
};

constexpr size_t kAlignment = 64;
// Linux hands out more than there is and ends whoever uses it. Of so many bytes it is asked before they grow: what is
// known beforehand is asked for by whoever knows (sim/model/footprint.h).
constexpr size_t kWorthAsking = 1 << 20;

[[noreturn]] void fail_to_fit(size_t bytes) {
  throw MemoryError("memory: " + std::to_string(bytes) + " bytes do not fit");
}

// realloc() moves large blocks by their page tables.
class CpuGrowingMemory final : public GrowingMemory {
 public:
  explicit CpuGrowingMemory(MemoryUse& use) : use_(use) {}
  ~CpuGrowingMemory() override {
    use_.now -= bytes_;
    std::free(block_);
  }
  CpuGrowingMemory(const CpuGrowingMemory&) = delete;
  CpuGrowingMemory& operator=(const CpuGrowingMemory&) = delete;

  void* grow(size_t bytes) override {
    KV_CHECK(bytes >= bytes_);
    const size_t more = bytes - bytes_;
    if (more >= kWorthAsking && more > cpu::memory().free) fail_to_fit(more);
    const size_t skipped = skipped_by(block_);
    char* const block = static_cast<char*>(std::realloc(block_, bytes + kAlignment));
    if (!block) fail_to_fit(bytes);
    block_ = block;
    char* const data = block + skipped_by(block);
    if (data != block + skipped) std::memmove(data, block + skipped, bytes_);
    std::memset(data + bytes_, 0xFF, bytes - bytes_);
    use_.take(bytes - bytes_);
    bytes_ = bytes;
    return data;
  }

 private:
  // Bytes of a block before the first aligned one.
  static size_t skipped_by(const char* block) {
    return (kAlignment - reinterpret_cast<uintptr_t>(block) % kAlignment) % kAlignment;
  }

  MemoryUse& use_;
  char* block_ = nullptr;
  size_t bytes_ = 0;
};

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  Facts accelerator() const override { return {}; }
  std::string device_identity() const override { return {}; }
  DType activation_type() const override { return DType::kF32; }

  void* allocate(size_t bytes) override {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* data = std::aligned_alloc(kAlignment, rounded ? rounded : kAlignment);
    if (!data) fail_to_fit(bytes);
    std::memset(data, 0xFF, rounded);
    use_.take(bytes);
    return data;
  }
  void release(void* data, size_t bytes) override {
    use_.now -= bytes;
    std::free(data);
  }
  std::unique_ptr<GrowingMemory> growing_memory() override { return std::make_unique<CpuGrowingMemory>(use_); }
  void upload(void* to, const void* host, size_t bytes) override {
    refuse_to_record("upload");
    if (bytes > 0) std::memcpy(to, host, bytes);  // nothing may come from nowhere, which memcpy forbids
  }
  void download(void* host, const void* from, size_t bytes) override {
    refuse_to_record("download");
    if (bytes > 0) std::memcpy(host, from, bytes);
  }
  std::unique_ptr<Download> begin_download(const void* from, size_t bytes) override {
    refuse_to_record("begin_download");
    const auto* first = static_cast<const std::byte*>(from);
    return std::make_unique<CopiedDownload>(std::vector<std::byte>(first, first + bytes));
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  void fill_zero(void* data, size_t bytes) override { std::memset(data, 0, bytes); }
  void synchronize() override { refuse_to_record("synchronize"); }
  std::unique_ptr<Moment> mark() override {
    refuse_to_record("mark");
    return std::make_unique<ClockMoment>();
  }
  size_t bytes_in_use() const override { return use_.now; }
  size_t peak_bytes() const override { return use_.peak; }
  void reset_peak() override { use_.peak = use_.now; }
  Memory memory() const override { return cpu::memory(); }
  int callers() const override { return cpu::thread_count(); }
  void side_by_side(int count, const std::function<void()>& work) override { cpu::side_by_side(count, work); }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    return std::make_unique<CpuRecording>(work, use_.now, recording_);
  }

#define KV_METHOD(op, Args) \
  void op(const Args& args) override { run(cpu::op, args); }
  KV_FOR_EACH_OP(KV_METHOD)
#undef KV_METHOD

  void check_pages(const PagedView& cache) override {
    refuse_to_record("check_pages");
    cpu::check_pages(cache);
  }

 private:
  // Says what the work of a recording did wrong: the author of a policy may be the first to meet it.
  void refuse_to_record(const char* call) const {
    if (!recording_) return;
    check_failed(__FILE__, __LINE__,
                 ("ops alone inside a recording (Backend::record), no " + std::string(call)).c_str());
  }

  // Every op comes through here.
  template <class Args>
  void run(void (*op)(const Args&), const Args& args) {
    // for_each_view() would see no view of an incomplete type.
    static_assert(sizeof(Args) > 0);  // NOLINT(bugprone-sizeof-expression)
    if (checks_every_op()) for_each_view(args, cpu::check_pages);
    op(args);
  }

  MemoryUse use_;
  bool recording_ = false;  // a recording runs
};

[[maybe_unused]] const bool registered =
    register_backend("cpu", [] { return std::unique_ptr<Backend>(std::make_unique<CpuBackend>()); });

}  // namespace

}  // namespace kv
