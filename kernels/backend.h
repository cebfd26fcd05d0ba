#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/element.h"
#include "kernels/ops.h"

namespace kv {

struct PagedView;

struct Memory {
  size_t free = 0;   // bytes that can still be allocated
  size_t total = 0;  // bytes that the device has
};

// What results depend on, for their manifests: names and texts, in a fixed order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Ops that were recorded once, to be run again and again.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;
};

// A point in the order of the ops, as the device reaches it.
class Moment {
 public:
  virtual ~Moment() = default;
  // Seconds from an earlier moment of the same backend to this one. Waits until the device has reached it.
  virtual double seconds_since(const Moment& earlier) const = 0;
};

// What is on its way from the device to the host, as it was when it was asked for.
class Download {
 public:
  virtual ~Download() = default;
  // Waits until it is there, and for nothing that was asked of the device since. Valid as long as the download is.
  virtual std::span<const std::byte> wait() = 0;
  template <class T>
  std::span<const T> wait_for() {
    const std::span<const std::byte> bytes = wait();
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// Memory that grows in place of a larger copy: what it holds stays.
class GrowingMemory {
 public:
  virtual ~GrowingMemory() = default;
  // Makes it `bytes` long, no less than it was, and returns where it lies now, 64-byte aligned; what is new is 0xFF. It
  // takes no more than that while it grows, but for small blocks of the host, which may be copied. Nothing to record.
  virtual void* grow(size_t bytes) = 0;
};

// Where memory lives and ops run. Each op's contract stands in kernels/<op>.h; every backend implements all of them.
// A backend registers itself by name (kernels/<name>/backend.cpp); what the build lacks is an error, never a fallback.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Facts of the device that runs the ops: "gpu", its product name ("NVIDIA H200"), then size, driver and libraries.
  // None where the host runs them.
  virtual Facts accelerator() const = 0;
  // Which of all such devices this one is, wherever it is seen from. Empty where the host runs the ops.
  virtual std::string device_identity() const = 0;
  // Element type of weights, activations, keys and values; statistics and scores are f32 everywhere.
  virtual DType activation_type() const = 0;

  virtual void* allocate(size_t bytes) = 0;  // 64-byte aligned, every byte 0xFF
  virtual void release(void* data, size_t bytes) = 0;
  virtual std::unique_ptr<GrowingMemory> growing_memory() = 0;  // of no bytes yet
  // The host's memory may change as soon as it returns. It need not wait for the device, which download() does.
  virtual void upload(void* to, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* from, size_t bytes) = 0;
  // The same without a wait: the host may ask for what comes next before it looks. Nothing to record.
  virtual std::unique_ptr<Download> begin_download(const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(void* data, size_t bytes) = 0;
  virtual void synchronize() = 0;
  // The moment when the device has done all that was asked of it so far: asking waits for nothing, so that phases can
  // be timed while the host runs ahead. Not inside a recording.
  virtual std::unique_ptr<Moment> mark() = 0;
  virtual size_t bytes_in_use() const = 0;
  virtual size_t peak_bytes() const = 0;
  virtual void reset_peak() = 0;  // to what is in use now
  // As it is now: other programs may take their share later.
  virtual Memory memory() const = 0;
  // How many threads of the host this kind of backend serves best at once, each through a backend of its own: of the
  // CPU, whose ops run on those threads, as many as it may use; of a GPU one.
  virtual int callers() const { return 1; }
  // Runs `work` on this thread and up to count - 1 others at once, count <= callers(): they share what there is to do
  // among themselves. Returns when all have returned, and throws what the first of them threw.
  virtual void side_by_side(int /*count*/, const std::function<void()>& work) { work(); }

  // Records the ops that `work` calls; each run() repeats them, in the order of all other ops, without the host's work
  // between them. Pointers and sizes are those of the recording, so what changes from run to run lies in backend memory
  // and is changed by ops. `work` may neither upload, download nor synchronize, keeps no memory that it allocates and
  // leaves no trace on the host: a backend without such a thing (the CPU) calls it again at each run().
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;

#define KV_METHOD(op, Args) virtual void op(const Args& args) = 0;
  KV_FOR_EACH_OP(KV_METHOD)
#undef KV_METHOD

  // Throws PageError where a cache's view cannot be right (kernels/check_pages.h). Waits for the ops before it, so it
  // is nothing to record.
  virtual void check_pages(const PagedView& cache) = 0;
  // Whether every op checks first the views that it reads, but for those of a GPU's recording. So debug builds begin.
  void check_every_op(bool on) { checks_every_op_ = on; }

 protected:
  Backend();
  bool checks_every_op() const { return checks_every_op_; }

 private:
  bool checks_every_op_;
};

using BackendFactory = std::unique_ptr<Backend> (*)();

// Registers a factory under `name`; the result only exists so that a static initialiser can call it.
bool register_backend(std::string_view name, BackendFactory factory);

// Throws UserError naming the known backends when `name` is none of them.
std::unique_ptr<Backend> make_backend(std::string_view name);

}  // namespace kv
