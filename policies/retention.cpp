// Global retention: a gate looks at each new token and says by how much a head's interest in its entry fades a token.
// Paper: 003, "DBTrimKV" (Sec. 4; predecessor TRIM-KV): gates kernels/retention_gate.h, computed once, when the token
// comes, from what attention reads of it; scores kernels/retention_scores.h, what the entry is still worth to the next
// `horizon` tokens. Nothing is protected: how recent a token is stands in the exponent. In the paper entries of all
// layers and heads compete for one budget (allocation: global).
// Where paper and released code differ, the defaults are the code's gate, with 64 units instead of 512, and the paper's
// exponent, t − i + 1: the code's is one more (age_offset: 2), TRIM-KV's text one less (0). Deviations: log β is kept
// in f32. Of entries whose scores are equal, such as all where a training begins with β = 1, the newer stay.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/retention_scores.h"
#include "kernels/write_column.h"
#include "policies/parts/options.h"
#include "policies/parts/retention_network.h"
#include "policies/parts/retention_training.h"
#include "sim/learned/learned_file.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

constexpr const char* kName = "retention";

class Retention final : public Scorer {
 public:
  explicit Retention(Params& params)
      : network_(RetentionShape::read(params)),
        horizon_(option_at_least(params, 1, "horizon", 1, "tokens to come that an entry is rated for (TRIM-KV: 1)")),
        age_offset_(read_age_offset(params)),
        weights_(read_weights(params)),
        training_(network_.shape(), weights_) {}

  Needs needs() const override { return {.entry_columns = 1, .inputs = true}; }
  Protection protects(int, int) const override { return {}; }

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view) const override {
    if (weights_ == kInitialWeights) return {};
    return check_learned(
        learned_path(model.folder(), weights_), kName, model,
        {.settings = network_.shape().expected_settings(),
         .parts = [&](const LearnedFile& learned, const SourceInfo& info) { return network_of(learned).parts(info); },
         .remedy = "`kvlab train SPEC` makes one, weights: initial does without"});
  }

  void load(std::span<const InputFile> files) override {
    if (files.empty()) return;
    learned_ = load_learned(files.front(), kName);
    network_ = network_of(learned_);
  }

  void begin(const BatchShape& shape) override {
    network_.use(*shape.backend, *shape.source, parameters(*shape.source, shape.seed));
  }

  size_t learned_bytes(const SourceInfo& info, DType activations) const override {
    return network_.bytes(info, activations);
  }

  Learner* learner() override { return &training_; }

  void observe(const LayerView& view) override {
    view.backend.write_column({.cache = view.cache,
                               .segments = view.device_segments,
                               .segment_count = std::ssize(view.segments),
                               .values = network_.log_retention(view),
                               .pool_columns = view.columns});
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.retention_scores({.cache = view.cache,
                                   .tokens_seen = out.device_tokens_seen,
                                   .horizon = horizon_,
                                   .age_offset = age_offset_,
                                   .rows_due = out.rows_due,
                                   .scores = out.scores});
  }

 private:
  static int read_age_offset(Params& params) {
    const int offset = params.get("age_offset", 1,
                                  "of the exponent t − i + age_offset, 0 being the newest token's age (003: 1; its "
                                  "code: 2; TRIM-KV's text: 0, by which no newest token ever leaves)");
    if (offset < 0 || offset > 2) params.fail("age_offset", "expected 0, 1 or 2");
    return offset;
  }
  static std::string read_weights(Params& params) {
    const std::string name = params.text(
        "weights",
        "what was learned: a file learned/<weights>.safetensors in the model's folder (without: retention), "
        "or the path of one; initial: those that a training begins with, which know nothing but take as "
        "long");
    return name.empty() ? std::string(kName) : name;
  }

  // Of the width that the file says.
  RetentionNetwork network_of(const LearnedFile& learned) const {
    RetentionShape shape = network_.shape();
    shape.take_width(learned, kName);
    return RetentionNetwork(shape);
  }

  std::vector<float> parameters(const SourceInfo& info, uint64_t seed) const {
    if (!training_.used().empty()) return training_.used();
    if (!learned_.parts.empty()) return parameters_as(learned_, network_.parts(info), kName);
    KV_CHECK(weights_ == kInitialWeights);
    return network_.initial(info, seed);
  }

  RetentionNetwork network_;
  int horizon_, age_offset_;
  std::string weights_;
  RetentionTraining training_;
  LearnedFile learned_;
};

const RegisterPolicy registered{{
    .name = kName,
    .summary = "a learned gate says how fast a token's entry fades (global retention, 003)",
    .make = [](Params& params) { return std::make_unique<Retention>(params); },
}};

}  // namespace

}  // namespace kv
