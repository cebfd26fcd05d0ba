#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace kv {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

std::string_view rope_type_name(RopeType type);  // as config.json spells it

// What config.json says of rotary positions. Fields that the type does not use keep their defaults.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;             // linear, llama3, yarn: context extension
  int original_max_positions = 0;  // llama3, yarn: context of the original training
  double low_freq_factor = 1.0;    // llama3
  double high_freq_factor = 4.0;   // llama3
  double beta_fast = 32.0;         // yarn: rotations over the original context above which a frequency is kept
  double beta_slow = 1.0;          // yarn: rotations below which it is divided by `factor`
  bool truncate = true;            // yarn: the ramp's ends are rounded outwards to whole dimensions
  // yarn: the factor itself, or a ratio from both of mscale and mscale_all_dim, in place of the paper's formula.
  std::optional<double> attention_factor = std::nullopt;
  std::optional<double> mscale = std::nullopt;
  std::optional<double> mscale_all_dim = std::nullopt;
  // What each pair's scaled frequency is divided by, [head_dim / 2]; empty: nothing. GGUF files hold Llama 3's scaling
  // so, with the type default.
  std::vector<float> divisors = {};
};

// Pair i of a head's dimensions, (i, i + head_dim / 2), turns by position * inv_freq[i]; the cosines and sines are then
// multiplied by attention_factor.
struct Rope {
  std::vector<float> inv_freq;  // [head_dim / 2], radians a token
  double attention_factor = 1.0;
};

// Frequencies as in Hugging Face transformers 5: default theta^(-2i/d); linear divides all by `factor`; llama3
// (Llama 3.1) divides long wavelengths and blends between two cut-offs; yarn: Peng et al. 2023, arXiv:2309.00071, with
// `factor` taken from the config even where max_position_embeddings / original_max_position_embeddings differs from it.
// Computed in f32 by transformers' operations in their order, the power theta^(2i/d) rounded correctly: the same bits
// as transformers where torch calls the C library (ATEN_CPU_CAPABILITY=default). Torch's own AVX2 and AVX-512 powers
// are a unit in the last place off for about one frequency in a hundred, and not for the same ones. head_dim: even,
// positive.
Rope make_rope(const RopeConfig& config, int head_dim);

}  // namespace kv
