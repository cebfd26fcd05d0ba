#include "tests/ref/naive_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "kernels/half.h"
#include "tests/support/backends.h"

namespace kv::ref {

namespace {

using Values = std::vector<double>;  // row-major

class Decoder {
 public:
  Decoder(const Weights& weights, Stored stored)
      : config_(weights.config()), stored_(stored), rope_(make_rope(config_.rope, config_.head_dim)) {
    const auto backend = make_backend("cpu");
    for (const ExpectedTensor& tensor : expected_tensors(config_)) {
      const auto values = download_array<float>(weights.load(tensor, *backend));
      tensors_[tensor.name] = store(Values(values.begin(), values.end()));
    }
  }

  // Logits of every token, [T, vocab].
  Values logits(const std::vector<int32_t>& ids) {
    tokens_ = ids.size();
    const Values& embedding = tensors_.at("model.embed_tokens.weight");
    const auto width = static_cast<size_t>(config_.hidden_size);
    Values hidden;
    for (const int32_t id : ids) {
      const auto row = embedding.begin() + static_cast<int64_t>(static_cast<size_t>(id) * width);
      hidden.insert(hidden.end(), row, row + static_cast<int64_t>(width));
    }
    for (int layer = 0; layer < config_.layers; ++layer) {
      prefix_ = "model.layers." + std::to_string(layer) + ".";
      add_product(hidden, attention(norm(hidden, prefix_ + "input_layernorm")), "self_attn.o_proj");
      add_product(hidden, gated(norm(hidden, prefix_ + "post_attention_layernorm")), "mlp.down_proj");
    }
    const bool tied = config_.tie_word_embeddings;
    return product(norm(hidden, "model.norm"), tied ? embedding : tensors_.at("lm_head.weight"), {});
  }

 private:
  Values store(Values values) const {
    if (stored_ == Stored::kExact) return values;
    for (double& value : values) value = store(value);
    return values;
  }
  double store(double value) const {
    return stored_ == Stored::kExact ? value : bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
  }

  // x / √(mean x² + ε) · weight over each run of as many values as there are weights.
  Values norm(const Values& input, const std::string& name) const {
    const Values& weight = tensors_.at(name + ".weight");
    Values output(input.size());
    for (size_t first = 0; first < input.size(); first += weight.size()) {
      double squares = 0;
      for (size_t i = 0; i < weight.size(); ++i) squares += input[first + i] * input[first + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + config_.rms_norm_eps);
      for (size_t i = 0; i < weight.size(); ++i) output[first + i] = input[first + i] * scale * weight[i];
    }
    return store(output);
  }

  Values product(const Values& input, const Values& weight, const Values& bias) const {
    const size_t in = input.size() / tokens_, out = weight.size() / in;
    Values output(tokens_ * out);
    for (size_t t = 0; t < tokens_; ++t) {
      for (size_t o = 0; o < out; ++o) {
        double sum = bias.empty() ? 0 : bias[o];
        for (size_t i = 0; i < in; ++i) sum += input[t * in + i] * weight[o * in + i];
        output[t * out + o] = sum;
      }
    }
    return output;
  }
  Values product(const Values& input, const std::string& name) const {
    const auto bias = tensors_.find(prefix_ + name + ".bias");
    return product(input, tensors_.at(prefix_ + name + ".weight"), bias == tensors_.end() ? Values{} : bias->second);
  }
  void add_product(Values& hidden, const Values& input, const std::string& name) const {
    const Values added = product(input, name);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = store(hidden[i] + added[i]);
  }

  // Queries or keys: [T, heads, head_dim], normed where the family does, and rotated.
  Values projected(const Values& input, const std::string& projection, int heads) const {
    Values x = store(product(input, "self_attn." + projection + "_proj"));
    if (config_.qk_norm) x = norm(x, prefix_ + "self_attn." + projection + "_norm");
    const size_t half = rope_.inv_freq.size();
    for (size_t vector = 0; vector < tokens_ * static_cast<size_t>(heads); ++vector) {
      const size_t token = vector / static_cast<size_t>(heads);
      const auto position = static_cast<float>(token);
      for (size_t d = 0; d < half; ++d) {
        const double angle = position * rope_.inv_freq[d];  // an f32 product as in transformers
        const double cosine = rope_.attention_factor * std::cos(angle), sine = rope_.attention_factor * std::sin(angle);
        double &a = x[vector * 2 * half + d], &b = x[vector * 2 * half + half + d];
        const double turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
      }
    }
    return store(x);
  }

  Values attention(const Values& input) const {
    const Values queries = projected(input, "q", config_.heads), keys = projected(input, "k", config_.kv_heads);
    const Values values = store(product(input, "self_attn.v_proj"));
    const auto heads = static_cast<size_t>(config_.heads), kv_heads = static_cast<size_t>(config_.kv_heads);
    const auto dim = static_cast<size_t>(config_.head_dim);
    Values output(tokens_ * heads * dim, 0);
    Values weights(tokens_);
    for (size_t t = 0; t < tokens_; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv_head = h / (heads / kv_heads);
        const auto entry = [&](size_t j) { return (j * kv_heads + kv_head) * dim; };
        double* out = &output[(t * heads + h) * dim];
        const double* query = &queries[(t * heads + h) * dim];
        for (size_t j = 0; j <= t; ++j) {
          weights[j] = 0;
          for (size_t d = 0; d < dim; ++d) weights[j] += query[d] * keys[entry(j) + d];
          weights[j] /= std::sqrt(static_cast<double>(dim));
        }
        const double largest = *std::max_element(weights.begin(), weights.begin() + static_cast<int64_t>(t) + 1);
        double sum = 0;
        for (size_t j = 0; j <= t; ++j) {
          const double weight = std::exp(weights[j] - largest);
          sum += weight;
          for (size_t d = 0; d < dim; ++d) out[d] += store(weight) * values[entry(j) + d];
        }
        for (size_t d = 0; d < dim; ++d) out[d] /= sum;
      }
    }
    return store(output);
  }

  Values gated(const Values& input) const {
    Values gate = store(product(input, "mlp.gate_proj"));
    const Values up = store(product(input, "mlp.up_proj"));
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return store(gate);
  }

  const ModelConfig config_;
  const Stored stored_;
  const Rope rope_;
  std::map<std::string, Values> tensors_;
  std::string prefix_;  // of the current layer's tensors
  size_t tokens_ = 0;
};

}  // namespace

NaiveScores naive_scores(const Weights& weights, const std::vector<int32_t>& ids, int tail, Stored stored) {
  const Values logits = Decoder(weights, stored).logits(ids);
  const auto vocab = static_cast<int64_t>(weights.config().vocab_size);
  NaiveScores scores;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    const auto row = logits.begin() + static_cast<int64_t>(t) * vocab;
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - largest);
    scores.nll.push_back(std::log(sum) + largest - row[ids[t + 1]]);
  }
  scores.logits_tail.assign(logits.end() - tail * vocab, logits.end());
  return scores;
}

}  // namespace kv::ref
