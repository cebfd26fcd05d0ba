// Expected attention: what queries drawn from a Gaussian fitted to the past ones would attend to next.
// Paper: Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
// Distribution" (2025), 002's π3; kernels/expected_attention.h.
//   μ, Σ of the pre-RoPE queries at positions >= sinks; R̄ = mean rotation over the next `future` positions;
//   u_j = k_j·R̄μ/√D + k_jᵀR̄ΣR̄ᵀk_j/(2D);  s_j = (mean over the group of softmax_j u + ε)·‖v_j‖₂.
// Sinks are protected. ε = 0.02 as 002 (kvpress: 0).
// Decode-time pruning fits the Gaussian to every query of the sequence so far.
// Deviation: refuses models whose rotary embedding scales attention (yarn), until the op takes that factor.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/error.h"
#include "kernels/expected_attention.h"
#include "policies/parts/options.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class ExpectedAttention final : public Scorer {
 public:
  explicit ExpectedAttention(Params& params)
      : future_(option_at_least(params, 1, "future", 512, "positions to come that the rotation is averaged over")),
        sinks_(option_at_least(params, 0, "sinks", 4, "first tokens that always stay and whose queries do not count")),
        recent_(option_at_least(params, 0, "recent", 0, "newest entries that always stay (002: 1)")),
        epsilon_(params.get("epsilon", 0.02, "added to the expected attention before the value norm (kvpress: 0)")),
        covariance_(params.get("use_covariance", "true", {"true", "false"}, "false: the mean query alone") == "true") {}

  Needs needs() const override { return {.pre_rope_queries = true}; }
  Protection protects(int, int) const override { return {.sinks = sinks_, .recent = recent_}; }

  void check_budget(int kept, int) const override {
    const int64_t protect = int64_t{sinks_} + recent_;
    if (kept <= protect) {
      throw UserError(
          fmt::format("expected-attention: budget {} does not exceed the {} protected entries", kept, protect));
    }
  }

  void begin(const BatchShape& shape) override {
    const SourceInfo& source = *shape.source;
    if (source.inv_freq.empty()) {
      throw UserError(fmt::format("expected-attention: {} does not tell its rotary frequencies", source.name));
    }
    if (source.attention_factor != 1) {
      throw UserError(fmt::format("expected-attention: {} scales rotary embeddings by {} (expected 1)", source.name,
                                  source.attention_factor));
    }
    Backend& backend = *shape.backend;
    inv_freq_ = Tensor(backend, DType::kF32, static_cast<int64_t>(source.inv_freq.size()));
    inv_freq_.upload(source.inv_freq.data(), source.inv_freq.size() * sizeof(float));
    counts_ = Tensor(backend, DType::kI32, shape.sequences);
    moments_.clear();
    const int64_t heads = static_cast<int64_t>(shape.sequences) * source.q_heads;
    for (int layer = 0; layer < source.layers; ++layer) moments_.emplace_back(backend, heads, source.head_dim);
  }

  void observe(const LayerView& view) override {
    Moments& moments = moments_[static_cast<size_t>(view.layer)];
    view.backend.query_moments({.queries = view.projections.pre_rope_queries,
                                .segments = view.device_segments,
                                .segment_count = static_cast<int64_t>(view.segments.size()),
                                .first_position = sinks_,
                                .q_heads = view.q_heads,
                                .head_dim = view.head_dim,
                                .sums = moments.sums(),
                                .products = moments.products()});
  }

  void score(const LayerView& view, const ScoreOutput& out) override {
    Moments& moments = moments_[static_cast<size_t>(view.layer)];
    upload_counts(out);
    view.backend.expected_attention({.cache = view.cache,
                                     .sums = moments.sums(),
                                     .products = moments.products(),
                                     .counts = counts_.ref().as<int32_t>(),
                                     .next_position = out.device_tokens_seen,
                                     .inv_freq = inv_freq_.ref().as<float>(),
                                     .q_heads = view.q_heads,
                                     .future = future_,
                                     .sinks = sinks_,
                                     .epsilon = static_cast<float>(epsilon_),
                                     .use_covariance = covariance_,
                                     .rows_due = out.rows_due,
                                     .scores = out.scores});
  }

 private:
  // Tensors know no f64: each double takes the room of two floats.
  class Moments {
   public:
    Moments(Backend& backend, int64_t heads, int64_t head_dim)
        : sums_(backend, DType::kF32, 2 * heads * head_dim),
          products_(backend, DType::kF32, sums_.elements() * head_dim) {
      sums_.fill_zero();
      products_.fill_zero();
    }
    double* sums() { return static_cast<double*>(sums_.ref().data); }
    double* products() { return static_cast<double*>(products_.ref().data); }

   private:
    Tensor sums_;      // [sequences, q_heads, head_dim]
    Tensor products_;  // [sequences, q_heads, head_dim, head_dim]
  };

  void upload_counts(const ScoreOutput& out) {
    std::vector<int32_t> counts;
    for (const int32_t seen : out.tokens_seen) counts.push_back(std::max(0, seen - sinks_));
    counts_.upload(counts.data(), counts.size() * sizeof(int32_t));
  }

  int future_;
  int sinks_;
  int recent_;
  double epsilon_;
  bool covariance_;
  Tensor inv_freq_;
  Tensor counts_;                 // [sequences]
  std::vector<Moments> moments_;  // [layers]
};

const RegisterPolicy registered{{
    .name = "expected-attention",
    .summary = "attention expected from Gaussian future queries (Devoto et al. 2025; pi3 of 002)",
    .make = [](Params& params) { return std::make_unique<ExpectedAttention>(params); },
}};

}  // namespace

}  // namespace kv
