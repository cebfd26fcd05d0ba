#include "harness/auto_batch.h"

#include "harness/protocols/protocol.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr int kMostSamplesTogether = 16;

}  // namespace

int largest_batch(size_t device_bytes, const BatchBytes& bytes) {
  int batch = 1;
  while (batch < kMostSamplesTogether && bytes(2 * batch) <= device_bytes / 2) batch *= 2;
  return batch;
}

int auto_batch(const UnitBatch& workload) {
  if (workload.backend.accelerator().empty() || !workload.spec.traces.empty()) return 1;
  try {
    const size_t weights = workload.subject.model()->weight_bytes();
    const BatchBytes bytes = workload.spec.protocol->memory(workload);
    return largest_batch(workload.backend.memory().total, [&](int samples) { return weights + bytes(samples); });
  } catch (const UserError&) {
    return 1;  // a model or data that cannot be had: each of its cases will say so
  }
}

}  // namespace kv
