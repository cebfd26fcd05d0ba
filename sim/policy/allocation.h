#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "sim/model/model_identity.h"
#include "sim/policy/baseline.h"
#include "sim/policy/params.h"
#include "sim/policy/protection.h"

namespace kv {

struct BatchShape;
struct Measured;

// One layer after all layers were scored. Row = sequence · kv_heads + head.
struct ScoredLayer {
  PagedView cache;
  std::span<const int32_t> lengths;  // [rows], host
  const float* scores = nullptr;     // [rows, pitch], backend memory; protected slots may be unwritten
  const float* ties = nullptr;       // [rows, pitch] or null
  int64_t pitch = 0;
};

// An event of the sequences that keep equally many entries.
struct AllocateArgs {
  Backend& backend;
  int sequences = 0;
  int kv_heads = 0;
  int kept = 0;  // entries a (layer, KV head) keeps, on average
  Protection protection;
  std::span<const uint8_t> sequences_due;  // [sequences]
  const uint8_t* rows_due = nullptr;       // [rows], the same in backend memory
  std::span<const int32_t> tokens_seen;    // [sequences]
  std::span<const ScoredLayer> layers;

  int rows() const { return sequences * kv_heads; }
  int64_t heads() const { return kv_heads * std::ssize(layers); }
  // Entries that a due sequence keeps over all layers and heads, whatever the allocation: budgets are equal totals.
  int64_t total() const { return kept * heads(); }
  bool is_due(int sequence) const { return sequences_due[static_cast<size_t>(sequence)] != 0; }
  int32_t longest(int sequence) const;  // entries of its longest head
};

// A file that an allocation reads: results depend on its bytes.
struct AllocationFile {
  std::filesystem::path path;
  std::string sha256;
};

// Divides a budget over layers and KV heads. Which entries of a head stay is still the scorer's order; a head whose
// count is below the protected set loses its oldest recent entries first, then its newer sinks (kernels/select_top.h).
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual bool needs_future() const { return false; }        // an oracle: begin() gets the full-cache pass
  virtual BaselineNeeds future_needs() const { return {}; }  // what that pass must keep for it
  // What can be known before anything runs, and is not asked again: UserError where it cannot serve this scorer on this
  // model. Returns the file that load() must get before begin(), if any. `scorer` is Policy::scorer_name, as a profile
  // quotes it.
  virtual std::optional<AllocationFile> check(const ModelIdentity& /*model*/, std::string_view /*scorer*/) const {
    return {};
  }
  // The option that makes what it leaves in a cache mean nothing, so that only time and memory may be measured with it;
  // empty: none does.
  virtual std::string_view cost_only_option() const { return {}; }
  // Reads the file that check() has found good. UserError where it holds other bytes by now.
  virtual void load(const AllocationFile&) {}
  virtual void begin(const BatchShape&) {}
  // Whether every head keeps what the scorer protects in it, as long as the mean budget has room for that.
  virtual bool keeps_protected() const { return false; }
  // Entries that one head keeps at most of an event that leaves `kept` a head on average, of all that it may have.
  virtual int64_t most_kept(int64_t kept, int layers, int kv_heads) const { return kept * layers * kv_heads; }
  // Writes counts [layers, rows], host memory, of the due sequences: 0 to the head's length each, their sum over a
  // sequence is total(). The loop checks both.
  virtual void allocate(const AllocateArgs& args, std::span<int32_t> counts) = 0;
  // Rows (harness/metrics/metric.h) on how it came to the counts since begin(), where that is not the same every time.
  virtual void report(std::vector<Measured>&) const {}
};

struct AllocationEntry {
  std::string name;
  std::string summary;  // one line, with the source
  std::function<std::unique_ptr<Allocation>(Params&)> make;
};

// Registers from a static object in the allocation's .cpp.
struct RegisterAllocation {
  explicit RegisterAllocation(AllocationEntry entry);
};

// Sorted by name.
std::vector<const AllocationEntry*> allocations();

// Throws UserError: unknown name (lists the known ones), unknown or ill-typed option.
std::unique_ptr<Allocation> make_allocation(std::string_view name, std::vector<GivenParam> options);
std::vector<DeclaredParam> describe_allocation(std::string_view name);

// check() and load(), for whoever checks a policy and runs it at once.
void prepare(Allocation& allocation, const ModelIdentity& model, std::string_view scorer);

// For whoever looks at more than time and memory: UserError for an allocation with a cost_only_option().
void require_meaning(const Allocation& allocation, std::string_view name);

}  // namespace kv
