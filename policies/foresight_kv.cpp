// ForesightKV: a small network a KV head, learned from what Golden Eviction evicts, foresees which entries the future
// will not need.
// Paper: 001, "ForesightKV", Sec. 3 and App. B.
//   φ = W2 · GELU(W1 x + b1) + b2,  x = [k, v, a],  k after RoPE;  a: of each query head of the group, the attention
//   that the entry received from the newest 8, 16, 32 queries and from the interval's, the sum of all, and that sum
//   where every interval before weighs 0.9 times the next; φ large = evict.
// An event every L tokens, the newest L protected, no sinks. Trained by `kvlab train` (policies/parts/
// foresight_training.h); weights are read from <model folder>/learned/.
// Where paper and released code differ (features, their decay, which way φ points), the paper's text holds. Deviations:
// scores are −φ, so that high stays, as everywhere here. Attention in f32, not bf16. Sums over the newest queries reach
// no further back than the interval; like those over it they are computed at the event from the interval's cached
// queries, as in the code, or, with sums: kept, are columns of an entry to which every step adds, 24 bytes a query head
// in all instead of 8, and an event attends to nothing (policies/parts/foresight_scorer.h). One-shot compression is
// refused: neither paper nor code says what an interval is there.

#include <memory>

#include "policies/parts/foresight_scorer.h"
#include "policies/parts/foresight_training.h"
#include "sim/learned/learned_file.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

constexpr std::string_view kName = "foresight-kv";

class ForesightKv final : public ForesightScorer {
 public:
  explicit ForesightKv(Params& params)
      : ForesightScorer(ForesightShape::read(params), read_eviction_sampling(params)),
        weights_(read_weights(params)),
        training_(*this, weights_) {}

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view) const override {
    if (weights_ == kInitialWeights) return {};
    return check_learned(learned_path(model.folder(), weights_), kName, model, shape().demand());
  }

  void load(std::span<const InputFile> files) override {
    if (!files.empty()) learned_ = load_learned(files.front(), kName);
  }

  void begin(const BatchShape& batch) override {
    const SourceInfo& info = *batch.source;
    if (!learned_.parts.empty()) use(info, parameters_as(learned_, shape().parts(info), kName));
    if (weights_ == kInitialWeights) use(info, training_.initial(info, batch.seed));
    ForesightScorer::begin(batch);
  }

  Learner* learner() override { return &training_; }

 private:
  static std::string read_weights(Params& params) {
    const std::string name =
        params.text("weights",
                    "what was learned: a file learned/<weights>.safetensors in the model's folder (without: "
                    "foresight-kv), or the path of one; initial: those that a training begins with, which foresee "
                    "nothing but take as long");
    return name.empty() ? std::string(kName) : name;
  }

  std::string weights_;
  LearnedFile learned_;
  ForesightTraining training_;
};

const RegisterPolicy registered{{
    .name = std::string(kName),
    .summary = "learned: a network a KV head foresees what the future will not need (ForesightKV, 001)",
    .make = [](Params& params) { return std::make_unique<ForesightKv>(params); },
}};

}  // namespace

}  // namespace kv
