#include <optional>

#include "kernels/cuda/retention_gate/retention_gate.cuh"

// Gates of any width: both layers are products of cuBLASLt (gemm.cuh), whose sums stay f32 until a kernel here makes
// units of them.

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// What an embedding is made of: a layer's sums in f32, or units that are made already.
struct Embeddings {
  const float* sums = nullptr;  // [tokens, embeddings, hidden], without bias; null: units
  const float* bias = nullptr;  // [embeddings, hidden]
  const bf16* units = nullptr;  // [tokens, hidden]
  int hidden = 0;
  int count = 1;  // embeddings of a token

  __device__ int64_t first_unit(int64_t head) const { return count == 1 ? 0 : head * hidden; }
  // of the units of a token's embeddings
  __device__ float at(int64_t token, int64_t unit) const {
    if (!sums) return to_f32(units[token * hidden + unit]);
    return silu(sums[token * count * hidden + unit] + bias[unit]);
  }
};

__global__ void make_units(const float* sums, const float* bias, int hidden, int64_t count, bf16* units) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < count) units[i] = to_bf16(silu(sums[i] + bias[i % hidden]));
}

// One warp a gate.
__global__ void write_log_retention(Embeddings embeddings, const float* weights, const float* bias, int kv_heads,
                                    int64_t gates, float* log_retention) {
  const int64_t gate = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  if (gate >= gates) return;
  const int64_t token = gate / kv_heads, head = gate % kv_heads;
  float z = 0;
  for (int u = threadIdx.x % 32; u < embeddings.hidden; u += 32) {
    z += weights[head * embeddings.hidden + u] * embeddings.at(token, embeddings.first_unit(head) + u);
  }
  z = warp_reduce(z, Add());
  if (threadIdx.x % 32 == 0) log_retention[gate] = log_sigmoid(z + bias[head]);
}

__global__ void make_logit_gradients(RetentionGateBackwardArgs args, int64_t first, int64_t gates, float* gradients) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < gates) gradients[i] = logit_gradient(args, first + i);
}

// Tiles of the output's gradients: 32 units of a head, or the head's bias. All blocks of a tile would be too few to
// hide how long a token takes to come, so a block adds up one slice of the tokens, each of its warps every eighth of
// it, and the slices are added up afterwards: sums[slice, tile, 32].
constexpr int64_t kSlice = 128;
constexpr int kWarps = kThreads / 32;
struct OutputTiles {
  int64_t count;
  int per_head;  // the last of them is the bias'

  __device__ int64_t head(int64_t tile) const { return tile / per_head; }
  __device__ bool is_bias(int64_t tile) const { return tile % per_head == per_head - 1; }
  __device__ int unit(int64_t tile, int lane) const { return static_cast<int>(tile % per_head) * 32 + lane; }
};

__global__ void __launch_bounds__(kThreads)
    sum_output_slices(Embeddings embeddings, const float* logit_gradients, int kv_heads, int64_t tokens,
                      OutputTiles tiles, float* sums) {
  __shared__ float parts[kWarps][32];
  const int64_t tile = blockIdx.x % tiles.count, slice = blockIdx.x / tiles.count, head = tiles.head(tile);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, u = tiles.unit(tile, lane);
  const bool is_bias = tiles.is_bias(tile);
  float sum = 0;
  if (is_bias || u < embeddings.hidden) {
    for (int64_t token = slice * kSlice + warp; token < min((slice + 1) * kSlice, tokens); token += kWarps) {
      const float by = logit_gradients[token * kv_heads + head];
      sum += is_bias ? by : by * embeddings.at(token, embeddings.first_unit(head) + u);
    }
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
  sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w][lane];
  sums[blockIdx.x * int64_t{32} + lane] = sum;
}

// A warp a tile.
__global__ void add_output_slices(const float* sums, int64_t slices, OutputTiles tiles, int hidden,
                                  float* weight_gradient, float* bias_gradient) {
  const int64_t tile = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, head = tiles.head(tile);
  if (tile >= tiles.count) return;
  const int lane = threadIdx.x % 32, u = tiles.unit(tile, lane);
  float sum = 0;
  for (int64_t slice = 0; slice < slices; ++slice) sum += sums[(slice * tiles.count + tile) * 32 + lane];
  if (tiles.is_bias(tile)) {
    if (lane == 0) bias_gradient[head] += sum;
  } else if (u < hidden) {
    weight_gradient[head * hidden + u] += sum;
  }
}

// The gradient of a unit by what its output got, [tokens, units]: of an embedding by the logits, of the first layer by
// the second.
struct ByLogits {
  const float* logit_gradients;  // [tokens, kv_heads]
  const float* weights;          // [kv_heads, hidden]
  int kv_heads, hidden, embeddings;

  __device__ float at(int64_t token, int64_t unit) const {
    const float* by = logit_gradients + token * kv_heads;
    if (embeddings > 1) return by[unit / hidden] * weights[unit];
    float sum = 0;
    for (int head = 0; head < kv_heads; ++head) sum += by[head] * weights[head * hidden + unit];
    return sum;
  }
};
struct ByLayer {
  const float* gradients;  // [tokens, units]
  int64_t units;

  __device__ float at(int64_t token, int64_t unit) const { return gradients[token * units + unit]; }
};

// Gradients of a layer's sums, by token for what lies before the layer and by unit for its weights: a block has a tile
// of both, which it turns in shared memory.
constexpr int kTile = 32;
template <class By>
__global__ void make_sum_gradients(By by, const float* sums, const float* bias, int64_t tokens, int64_t units,
                                   int64_t unit_tiles, bf16* by_token, bf16* by_unit) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t first_token = blockIdx.x / unit_tiles * kTile, first_unit = blockIdx.x % unit_tiles * kTile;
  const int x = threadIdx.x % kTile;
  for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile) {
    const int64_t token = first_token + y, unit = first_unit + x;
    if (token >= tokens || unit >= units) continue;
    const float gradient = by.at(token, unit) * silu_slope(sums[token * units + unit] + bias[unit]);
    by_token[token * units + unit] = to_bf16(gradient);
    tile[y][x] = gradient;
  }
  __syncthreads();
  for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile) {
    const int64_t token = first_token + x, unit = first_unit + y;
    if (token < tokens && unit < units) by_unit[unit * tokens + token] = to_bf16(tile[x][y]);
  }
}

// One block a unit.
__global__ void add_bias_gradient(const bf16* by_unit, int64_t tokens, float* bias_gradient) {
  const bf16* of_unit = by_unit + blockIdx.x * tokens;
  float sum = 0;
  for (int64_t token = threadIdx.x; token < tokens; token += kThreads) sum += to_f32(of_unit[token]);
  sum = block_reduce(sum, 0.0f, Add());
  if (threadIdx.x == 0) bias_gradient[blockIdx.x] += sum;
}

// A layer of `units` units that reads `in` numbers a token.
struct Layer {
  const bf16* weights;  // [units, in]
  const float* bias;    // [units]
  int64_t in, units;

  // sums[tokens, units] = x · weightsᵀ
  void forward(const bf16* x, int64_t tokens, float* sums) const {
    gemm({.input = x,
          .weight = weights,
          .output = sums,
          .output_type = DType::kF32,
          .rows = tokens,
          .in = in,
          .out = units});
  }
};

// Gradients of a layer's sums, as its two products read them.
class SumGradients {
 public:
  template <class By>
  SumGradients(const Layer& layer, const By& by, const float* sums, int64_t tokens)
      : layer_(layer), tokens_(tokens), by_token_(tokens * layer.units), by_unit_(tokens * layer.units) {
    const int64_t unit_tiles = ceil_div(layer.units, kTile);
    launch(make_sum_gradients<By>, ceil_div(tokens, kTile) * unit_tiles, kThreads, 0, by, sums, layer.bias, tokens,
           layer.units, unit_tiles, by_token_.data(), by_unit_.data());
  }

  // x_gradient[tokens, in] (+)= gradients · weights, of that type
  void multiply(void* x_gradient, DType type, const void* addend) const {
    gemm({.input = by_token_.data(),
          .weight = layer_.weights,
          .weight_rows = WeightRows::kInputs,
          .addend = addend,
          .output = x_gradient,
          .output_type = type,
          .rows = tokens_,
          .in = layer_.units,
          .out = layer_.in});
  }
  // weight_gradient[units, in] += gradientsᵀ · x, bias_gradient[units] += Σ gradients
  void add(const bf16* x, float* weight_gradient, float* bias_gradient) const {
    add_over_tokens(by_unit_.data(), x, tokens_, layer_.units, layer_.in, weight_gradient);
    launch(add_bias_gradient, layer_.units, kThreads, 0, by_unit_.data(), tokens_, bias_gradient);
  }

 private:
  Layer layer_;
  int64_t tokens_;
  Scratch<bf16> by_token_, by_unit_;  // [tokens, units], [units, tokens]
};

// The op over tokens [first, first + tokens).
class Chunk {
 public:
  Chunk(const RetentionGateArgs& args, int64_t first, int64_t tokens)
      : args_(args),
        first_(first),
        tokens_(tokens),
        inputs_(args.inputs.as<bf16>() + first * args.width),
        first_layer_{args.input_weights.as<bf16>(), args.input_bias, args.width, args.hidden},
        first_sums_(tokens * args.hidden),
        units_(tokens * args.hidden) {
    first_layer_.forward(inputs_, tokens, first_sums_.data());
    launch(make_units, ceil_div(tokens * args.hidden, kThreads), kThreads, 0, first_sums_.data(), args.input_bias,
           args.hidden, tokens * args.hidden, units_.data());
    embeddings_ = {.units = units_.data(), .hidden = args.hidden, .count = args.embeddings};
    if (!is_deep()) return;
    const int64_t units = int64_t{args.embeddings} * args.hidden;
    second_layer_ = {args.hidden_weights.as<bf16>(), args.hidden_bias, args.hidden, units};
    second_sums_.emplace(tokens * units);
    second_layer_.forward(units_.data(), tokens, second_sums_->data());
    embeddings_.sums = second_sums_->data();
    embeddings_.bias = args.hidden_bias;
  }

  void write() const {
    launch(write_log_retention, ceil_div(gates(), kThreads / 32), kThreads, 0, embeddings_, args_.output_weights,
           args_.output_bias, args_.kv_heads, gates(), args_.log_retention + first_ * args_.kv_heads);
  }

  void add_gradients(const RetentionGateBackwardArgs& to) const {
    const Scratch<float> logits(gates());
    launch(make_logit_gradients, ceil_div(gates(), kThreads), kThreads, 0, to, first_ * args_.kv_heads, gates(),
           logits.data());
    add_output(logits.data(), to);
    const ByLogits by_logits{logits.data(), args_.output_weights, args_.kv_heads, args_.hidden, args_.embeddings};
    if (!is_deep()) {
      add_first_layer(SumGradients(first_layer_, by_logits, first_sums_.data(), tokens_), to);
      return;
    }
    const Scratch<float> of_units(tokens_ * args_.hidden);
    {
      const SumGradients second(second_layer_, by_logits, second_sums_->data(), tokens_);
      second.add(units_.data(), to.hidden_weight_gradient, to.hidden_bias_gradient);
      second.multiply(of_units.data(), DType::kF32, nullptr);
    }
    const ByLayer by_layer{of_units.data(), args_.hidden};
    add_first_layer(SumGradients(first_layer_, by_layer, first_sums_.data(), tokens_), to);
  }

 private:
  bool is_deep() const { return static_cast<bool>(args_.hidden_weights); }
  int64_t gates() const { return tokens_ * args_.kv_heads; }

  void add_output(const float* logit_gradients, const RetentionGateBackwardArgs& to) const {
    const auto per_head = static_cast<int>(ceil_div(args_.hidden, 32)) + 1;
    const OutputTiles tiles{int64_t{args_.kv_heads} * per_head, per_head};
    const int64_t slices = ceil_div(tokens_, kSlice);
    const Scratch<float> sums(slices * tiles.count * 32);
    launch(sum_output_slices, slices * tiles.count, kThreads, 0, embeddings_, logit_gradients, args_.kv_heads, tokens_,
           tiles, sums.data());
    launch(add_output_slices, ceil_div(tiles.count, kWarps), kThreads, 0, static_cast<const float*>(sums.data()),
           slices, tiles, args_.hidden, to.output_weight_gradient, to.output_bias_gradient);
  }

  void add_first_layer(const SumGradients& gradients, const RetentionGateBackwardArgs& to) const {
    gradients.add(inputs_, to.input_weight_gradient, to.input_bias_gradient);
    if (!to.input_gradient) return;
    bf16* of_inputs = to.input_gradient.as<bf16>() + first_ * args_.width;
    gradients.multiply(of_inputs, DType::kBF16, of_inputs);
  }

  const RetentionGateArgs& args_;
  int64_t first_, tokens_;
  const bf16* inputs_;
  Layer first_layer_, second_layer_{};
  Scratch<float> first_sums_;                  // [tokens, hidden], without bias
  Scratch<bf16> units_;                        // [tokens, hidden]
  std::optional<Scratch<float>> second_sums_;  // [tokens, embeddings, hidden], without bias; with W2
  Embeddings embeddings_;
};

}  // namespace

void run_wide_forward(const RetentionGateArgs& args) {
  for_each_chunk(args, [&](int64_t first, int64_t tokens) { Chunk(args, first, tokens).write(); });
}

void run_wide_backward(const RetentionGateBackwardArgs& args) {
  for_each_chunk(args.forward,
                 [&](int64_t first, int64_t tokens) { Chunk(args.forward, first, tokens).add_gradients(args); });
}

}  // namespace kv::cuda
