// LU-KV: budgets by a profile that was made offline, by the loss that a head's evictions really cause.
// Paper: 002 Sec. 4.3 and App. E. With σ = 1 − kept/seen, the fraction of the context that
// leaves, a head keeps entries in proportion to max(1 − Φ(σ), least), Φ from the profile of this model and scorer
// (sim/budget/profile.h), which `kvlab profile` makes. Cost: a look-up.
// Deviation: 002 rounds each head's share down and so keeps less than was asked; here the total is exact
// (sim/budget/apportion.h), as it is for every allocation.
// order: oracle takes the profile made in the oracle's order (002 Table 3, "without optimality gap"); the scorer then
// decides only which entries of a head stay.
// A model is known by its shape and its files, a scorer by its name and options. A trace or random weights have no
// files to compare: they need a profile of their shape by name. Nothing can be calibrated on random weights, whose
// answers mean nothing: `spread: yes` lays the profile of a real model over their layers and heads, so that time and
// memory are those of heads as unequal as LU-KV makes them. What the cache then holds means as little as the weights.

#include <fmt/format.h>

#include "kernels/error.h"
#include "policies/parts/options.h"
#include "sim/budget/divide.h"
#include "sim/budget/profile_file.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

constexpr std::string_view kMake = "`kvlab profile SPEC` makes one";

class LuKv final : public Allocation {
 public:
  explicit LuKv(Params& params)
      : file_(params.file(
            "profile",
            "budget profile, which may lie packed (FILE.xz); without it <model folder>/profiles/<scorer>.json")),
        oracle_order_(params.get("order", "scorer", {"scorer", "oracle"},
                                 "of the profile; oracle: without the optimality gap, for the ablation of 002") ==
                      "oracle"),
        spread_(params.get("spread", "no", {"no", "yes"},
                           "yes: a profile of another shape is laid over the layers and heads of random weights, for "
                           "time and memory only") == "yes"),
        least_(fraction_option(params, "least", 0.01, "least fraction that a head keeps (002: 0.01)")) {}

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view scorer) const override {
    // A model that is not there has no profiles either; whoever opens it says that it is missing.
    if (model.is_absent()) return {};
    scorer = profiled(scorer);
    const std::string file = existing_file(model.folder(), scorer).string();
    const std::string text = read_stored(file);
    const BudgetProfile profile = parse_profile(text, file);
    if (profile.scorer != scorer) {
      throw UserError(
          fmt::format("lu-kv: {} is the profile of {}, expected {}; {}", file, profile.scorer, scorer, kMake));
    }
    const ModelIdentity::Shape shape = model.shape();
    if (!spread_ && (profile.layers != shape.layers || profile.kv_heads != shape.kv_heads)) {
      throw UserError(fmt::format("lu-kv: {} is for {} layers of {} KV heads, expected {} of {}; {}", file,
                                  profile.layers, profile.kv_heads, shape.layers, shape.kv_heads, kMake));
    }
    if (!model.folder().empty() && profile.fingerprint != model.fingerprint()) {
      throw UserError(fmt::format("lu-kv: {} is for model {} with files of SHA-256 {:.12}…, expected {:.12}… of {}; {}",
                                  file, profile.model, profile.fingerprint, model.fingerprint(),
                                  model.folder().string(), kMake));
    }
    return {{file, sha256_hex(text)}};
  }

  std::string_view cost_only_option() const override { return spread_ ? "spread: yes" : ""; }

  void load(std::span<const InputFile> files) override {
    KV_CHECK(files.size() == 1);
    const InputFile& checked = files.front();
    const std::string file = checked.path.string();
    const std::string text = read_stored(checked.path);
    if (const std::string now = sha256_hex(text); now != checked.sha256) {
      throw UserError(fmt::format("lu-kv: {} has changed since it was checked: SHA-256 {:.12}…, expected {:.12}…", file,
                                  now, checked.sha256));
    }
    profile_ = parse_profile(text, file);
  }

  void begin(const BatchShape& shape) override {
    const SourceInfo& source = *shape.source;
    if (spread_) profile_ = laid_over(profile_, source.layers, source.kv_heads);
    KV_CHECK(profile_.layers == source.layers && profile_.kv_heads == source.kv_heads);  // check(), load()
  }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    for (int s = 0; s < args.sequences; ++s) {
      if (!args.is_due(s)) continue;
      const double removed = 1 - static_cast<double>(args.kept) / args.tokens_seen[static_cast<size_t>(s)];
      divide(args, s, kept_shares(profile_.at(removed), least_), counts);
    }
  }

 private:
  std::string_view profiled(std::string_view scorer) const { return oracle_order_ ? kOracleOrder : scorer; }

  std::filesystem::path file_of(const std::filesystem::path& model, std::string_view scorer) const {
    return file_.empty() ? default_profile_file(model, scorer) : std::filesystem::path(file_);
  }

  std::filesystem::path existing_file(const std::filesystem::path& model, std::string_view scorer) const {
    if (file_.empty() && model.empty()) {
      throw UserError("lu-kv: a trace or random weights have no folder with profiles, expected the option profile");
    }
    std::filesystem::path file = file_of(model, scorer);
    std::error_code error;
    if (!std::filesystem::exists(stored_file(file), error)) {
      throw UserError(fmt::format("lu-kv: there is no profile of {}, expected {}; {}", scorer, file.string(), kMake));
    }
    return file;
  }

  std::string file_;
  bool oracle_order_;
  bool spread_;
  double least_;
  BudgetProfile profile_;
};

const RegisterAllocation registered{{
    .name = "lu-kv",
    .summary = "by the offline profile of the scorer's eviction loss on this model (LU-KV, 002)",
    .make = [](Params& params) { return std::make_unique<LuKv>(params); },
}};

}  // namespace

}  // namespace kv
