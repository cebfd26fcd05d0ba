#include "harness/unit_key.h"

#include <fmt/format.h>

#include <string_view>

#include "harness/manifest.h"
#include "harness/protocols/protocol.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

// Names and values, each with its length, so that no two lists of them read alike.
class KeyText {
 public:
  void add(std::string_view name, std::string_view value) {
    text_ += fmt::format("{} {}:{}\n", name, value.size(), value);
  }
  template <class Number>
  void add_number(std::string_view name, Number value) {
    add(name, fmt::format("{}", value));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Each of these names every member of its struct: one more is an error here.

void add(KeyText& key, std::string_view name, const std::vector<GivenParam>& params) {
  key.add_number(name, params.size());
  for (const GivenParam& param : params) {
    const auto& [option, text, where] = param;  // wherever it was written
    key.add(option, text);
  }
}

void add(KeyText& key, const Component& component) {
  const auto& [name, label, options, where, only, slots] = component;  // the last two choose cases, below
  key.add("component", name);
  key.add("label", label);
  add(key, "options", options);
}

void add(KeyText& key, std::string_view kind, const SlotChoice& slot) {
  const auto& [name, options, where] = slot;  // wherever it was written
  key.add(kind, name);
  add(key, "options", options);
}

void add(KeyText& key, const SlotChoices& slots) {
  const auto& [allocation, admission, selection] = slots;
  add(key, "allocation", allocation);
  add(key, "admission", admission);
  add(key, "selection", selection);
}

void add(KeyText& key, const InputFile& file) {
  const auto& [path, sha256, slot] = file;  // wherever it lies
  key.add(slot, sha256);
}

// What the full-cache pass keeps for other cases leaves this one's numbers alone. The block of its statistics does not,
// where the case reads some, nor on a device whose sums depend on how many tokens a step has.
void add(KeyText& key, const BaselineNeeds& needs, const BaselineNeeds& of_all, bool on_host) {
  const auto& [statistics_block, block_sums, block_max, outputs, projections, value_norms, hidden] = needs;
  key.add("needs", fmt::format("{} {} {} {} {} {}", block_sums, block_max, outputs, projections, value_norms, hidden));
  const bool pass_has_blocks = of_all.block_sums || of_all.block_max;
  const bool depends = block_sums || block_max || (pass_has_blocks && !on_host);
  key.add_number("statistics_block", depends ? of_all.statistics_block : 0);
}

void add(KeyText& key, const Case& unit_case, const Spec& spec, const BaselineNeeds& needs_of_all, bool on_host) {
  const auto& [policy, options, slots, files, axes, settings, needs] = unit_case;
  const Component& component = spec.policies[static_cast<size_t>(policy)];
  key.add("policy", component.name);
  key.add("label", component.label);
  add(key, "options", options);
  add(key, slots);
  for (const InputFile& file : files) add(key, file);
  const std::vector<std::string> columns = spec.axis_columns();
  for (size_t i = 0; i < axes.size(); ++i) key.add(columns[i], axes[i]);
  add(key, "settings", settings);
  add(key, needs, needs_of_all, on_host);
}

// Models, traces and data are in the key as the bytes they hold, samples and batch as those of the unit's batch,
// policies and axes as the case; file, question, title, tables and plots change no row.
void add(KeyText& key, const Spec& spec) {
  const auto& [file, name, question, title, models, traces, benchmarks, data, texts, policies, protocol, axes, metrics,
               protocol_options, seed, samples, batch, device, prefill_chunk, report, resolved, row_keys, written] =
      spec;
  key.add("experiment", name);
  key.add("protocol", protocol->name);
  for (const auto& [option, params] : protocol_options) add(key, option, params);
  for (const Component& metric : metrics) add(key, metric);
  key.add_number("seed", seed);
  key.add("device", device);
  key.add_number("prefill_chunk", prefill_chunk);
}

// Model and texts are in the key as the bytes they hold, whatever drew them; the cases are other units.
void add(KeyText& key, const Workload& workload) {
  const auto& [model, data, tokens, samples, options, cases] = workload;
  key.add_number("tokens", tokens);
}

}  // namespace

std::string unit_key(const UnitBatch& unit_batch, const Case& unit_case, const std::string& inputs) {
  const auto& [backend, spec, subject, needs, workload, first, count] = unit_batch;
  KeyText key;
  key.add("code", code_identity());
  key.add("machine", machine_identity(spec.protocol->samples_repeat));
  for (const auto& [fact, text] : backend.accelerator()) key.add(fact, text);
  key.add("model", subject.name());
  key.add("fingerprint", subject.fingerprint());
  key.add("tokenizer", subject.tokenizer_sha256());
  key.add("data", unit_batch.data());
  key.add("inputs", inputs);
  key.add_number("first", first);
  key.add_number("count", count);
  add(key, spec);
  add(key, workload);
  add(key, unit_case, spec, needs, backend.accelerator().empty());
  return sha256_hex(key.text());
}

}  // namespace kv
