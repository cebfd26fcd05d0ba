#include "kernels/biased_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

// Tiles of logits are transposed, a key a row: keys are the left operands as they lie, queries become panels once a
// tile, and what softmax and its gradient need of each query (maximum, sums) are vectors along the rows, so that no
// step but that of a bias's gradient crosses lanes.

namespace kv::cpu {

namespace {

// Queries of a tile, and keys. What its products touch stays in the second-level cache.
constexpr int64_t kSide = 128;

// Backward splits its work into about so many tasks. Fixed, because each adds up gradients of its own.
constexpr int64_t kTasks = 16;

// Where maxima start: finite, because a tile's keys may all have the logit −∞.
constexpr float kLowest = -1e30F;

// Rows of scratch memory hold whole panels, and a cache line more: rows a power of two apart would share their cache
// sets.
constexpr int64_t stride_of(int64_t columns) { return round_up(columns, kPanelWidth) + 16; }
constexpr int64_t kTileStride = stride_of(kSide);
constexpr int64_t kTileFloats = kSide * kTileStride;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Vectors of [tokens, heads, dim], head by head, in rows of whole panels: [heads, tokens, stride].
class HeadRows {
 public:
  HeadRows(int64_t heads, int64_t tokens, int64_t dim)
      : tokens_(tokens), stride_(stride_of(dim)), memory_(heads * tokens * stride_) {}
  int64_t stride() const { return stride_; }
  float* row(int64_t head, int64_t token) const { return memory_.data() + (head * tokens_ + token) * stride_; }

 private:
  int64_t tokens_, stride_;
  Scratch memory_;
};

// Copies `dim` values into a row of whole panels; what is behind them is 0.
void copy_padded(const float* from, int64_t dim, float* to) {
  std::copy_n(from, dim, to);
  std::fill(to + dim, to + round_up(dim, kPanelWidth), 0.0F);
}

HeadRows head_rows(const PackedAttention& attention, ConstRef vectors) {
  constexpr int64_t kTokens = 256;
  const int64_t heads = attention.kv_heads, dim = attention.head_dim;
  HeadRows rows(heads, attention.tokens, dim);
  const auto* from = vectors.as<float>();
  parallel_blocks(attention.tokens, kTokens, [&](int64_t first, int64_t end) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t token = first; token < end; ++token) {
        copy_padded(from + (token * heads + head) * dim, dim, rows.row(head, token));
      }
    }
  });
  return rows;
}

// A tile of one query head: queries [first_query, + queries) and keys [first_key, + keys) of a segment.
struct Tile {
  const PackedAttention& attention;
  const Segment& segment;
  int64_t kv_head = 0;
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t first_key = 0;
  int64_t keys = 0;

  bool has_masked() const { return first_key + keys - 1 > first_query; }
  bool is_unseen() const {
    const KeyBias& bias = attention.bias;
    return bias.form == KeyBias::Form::kOutsideWindow && first_key >= bias.far_keys &&
           first_query - (first_key + keys - 1) >= bias.window;
  }
  // The tile's first query that sees its key `row`, and the first for which that key is outside the window.
  int64_t first_seeing(int64_t row) const { return std::clamp<int64_t>(row + shift(), 0, queries); }
  int64_t first_outside(int64_t row) const {
    return std::clamp<int64_t>(row + shift() + attention.bias.window, first_seeing(row), queries);
  }
  // How many of the tile's keys its query `column` sees.
  int64_t seen_by(int64_t column) const { return std::clamp<int64_t>(column - shift() + 1, 0, keys); }
  // i − j of a place.
  float distance(int64_t row, int64_t column) const {
    return static_cast<float>(static_cast<int32_t>(column - shift() - row));
  }
  // Below the lowest finite number there is −∞, of which 0 times is no number.
  float bias(int64_t row) const {
    const int64_t token = segment.first_token + first_key + row;
    const float b = attention.bias.values[token * attention.kv_heads + kv_head];
    constexpr float kLeast = std::numeric_limits<float>::lowest();
    return b < kLeast ? kLeast : b;
  }

 private:
  int64_t shift() const { return first_key - first_query; }
};

// Vectors of a tile's queries: rows of whole panels, and the same as right operands, [queries / kPanelWidth] panels
// [dim, kPanelWidth].
struct QueryRows {
  float* rows;
  float* panels;

  static int64_t floats(int64_t dim) { return kSide * (stride_of(dim) + dim); }
  QueryRows(float* memory, int64_t dim) : rows(memory), panels(memory + kSide * stride_of(dim)) {}

  // `from` is the first of the vectors, `step` apart.
  void load(const float* from, int64_t step, int64_t count, int64_t dim) const {
    const int64_t stride = stride_of(dim);
    for (int64_t i = 0; i < count; ++i) copy_padded(from + i * step, dim, rows + i * stride);
    for (int64_t i = 0; i < count; i += kPanelWidth) {
      pack_transposed(rows + i * stride, std::min<int64_t>(kPanelWidth, count - i), stride, dim, panels + i * dim);
    }
  }
};

// places[key, query] = alpha · left[key] · right[query]; where no query of a panel sees a key, nothing is written.
void multiply_pairs(const Tile& tile, const float* left, const QueryRows& right, float alpha, float* places) {
  const int64_t dim = tile.attention.head_dim;
  for (int64_t column = 0; column < tile.queries; column += kPanelWidth) {
    const int64_t last = std::min<int64_t>(column + kPanelWidth, tile.queries) - 1;
    panel_product({.a = left,
                   .lda = stride_of(dim),
                   .b = right.panels + column * dim,
                   .k = dim,
                   .c = places + column,
                   .ldc = kTileStride,
                   .alpha = alpha},
                  tile.seen_by(last));
  }
}

// sums[row] += alpha · Σ_k weights[row, k] · vectors[k], for k in [0, depth).
void add_product(const float* weights, int64_t rows, const float* vectors, int64_t depth, int64_t dim, float alpha,
                 float* sums) {
  const int64_t stride = stride_of(dim);
  for (int64_t d = 0; d < dim; d += kPanelWidth) {
    panel_product({.a = weights,
                   .lda = kTileStride,
                   .b = vectors + d,
                   .ldb = stride,
                   .k = depth,
                   .c = sums + d,
                   .ldc = stride,
                   .alpha = alpha,
                   .write = Write::kAdd},
                  rows);
  }
}

// Where a part of the places is masked, products leave most of it out, some rows at a time.
int64_t rows_at_a_time(const Tile& tile) { return tile.has_masked() ? kPanelWidth : kSide; }

// sums[key] += alpha · Σ weights[key, query] · vectors[query], over the queries that see the key.
void add_over_queries(const Tile& tile, const float* weights, const float* vectors, float alpha, float* sums) {
  const int64_t dim = tile.attention.head_dim, stride = stride_of(dim), step = rows_at_a_time(tile);
  for (int64_t row = 0; row < tile.keys; row += step) {
    const int64_t first = tile.first_seeing(row);
    add_product(weights + row * kTileStride + first, std::min(step, tile.keys - row), vectors + first * stride,
                tile.queries - first, dim, alpha, sums + row * stride);
  }
}

// sums[query] += alpha · Σ weights[query, key] · vectors[key], over the keys that the query sees.
void add_over_keys(const Tile& tile, const float* weights, const float* vectors, float alpha, float* sums) {
  const int64_t dim = tile.attention.head_dim, stride = stride_of(dim), step = rows_at_a_time(tile);
  for (int64_t column = 0; column < tile.queries; column += step) {
    const int64_t rows = std::min(step, tile.queries - column);
    add_product(weights + column * kTileStride, rows, vectors, tile.seen_by(column + rows - 1), dim, alpha,
                sums + column * stride);
  }
}

// Adds the biases of a key to its logits.
void add_bias(const Tile& tile, int64_t row, float* logits) {
  using Form = KeyBias::Form;
  const Form form = tile.attention.bias.form;
  if (form == Form::kNone) return;
  const float b = tile.bias(row);
  if (form == Form::kOutsideWindow) {
    for (int64_t column = tile.first_outside(row); column < tile.queries; ++column) logits[column] += b;
  } else {
    for (int64_t column = tile.first_seeing(row); column < tile.queries; ++column) {
      logits[column] += tile.distance(row, column) * b;
    }
  }
}

// Σ ds · ∂bias/∂b of a key.
float bias_slope(const Tile& tile, int64_t row, const float* ds) {
  if (tile.attention.bias.form == KeyBias::Form::kOutsideWindow) {
    const int64_t first = tile.first_outside(row);
    return sum_of<float>(tile.queries - first, [&](int64_t i) { return ds[first + i]; });
  }
  const int64_t first = tile.first_seeing(row);
  return sum_of<float>(tile.queries - first, [&](int64_t i) { return tile.distance(row, first + i) * ds[first + i]; });
}

// logits[key, query]; masked ones are left as they are.
void find_logits(const Tile& tile, const float* keys, const QueryRows& queries, float* logits) {
  multiply_pairs(tile, keys, queries, tile.attention.scale, logits);
  for (int64_t row = 0; row < tile.keys; ++row) add_bias(tile, row, logits + row * kTileStride);
}

void check(const PackedAttention& attention) {
  KV_CHECK(attention.kv_heads > 0 && attention.q_heads % attention.kv_heads == 0);
  const KeyBias& bias = attention.bias;
  KV_CHECK((bias.form == KeyBias::Form::kNone) == (bias.values == nullptr));
  KV_CHECK(bias.form != KeyBias::Form::kOutsideWindow || bias.window >= 1);
}

// The tiles of one query head that have these queries, in the order of keys; what no query sees is passed over.
template <class Visit>
void for_key_tiles(Tile tile, const Visit& visit) {
  const int64_t end = tile.first_query + tile.queries;
  for (tile.first_key = 0; tile.first_key < end; tile.first_key += kSide) {
    tile.keys = std::min(kSide, end - tile.first_key);
    if (!tile.is_unseen()) visit(tile);
  }
}

// Forward of the queries of one tile: FlashAttention's online softmax over tiles of keys.
class Attended {
 public:
  static int64_t floats(int64_t dim) { return QueryRows::floats(dim) + kSide * stride_of(dim) + 2 * kTileFloats; }
  Attended(const BiasedAttentionArgs& args, const Tile& tile, int64_t q_head, float* memory)
      : args_(args),
        tile_(tile),
        dim_(args.attention.head_dim),
        first_vector_((tile.segment.first_token + tile.first_query) * args.attention.q_heads + q_head),
        queries_(memory, dim_),
        output_(memory + QueryRows::floats(dim_)),
        by_key_(output_ + kSide * stride_of(dim_)),
        by_query_(by_key_ + kTileFloats) {}

  void run(const HeadRows& keys, const HeadRows& values) {
    const int64_t q_heads = args_.attention.q_heads;
    queries_.load(args_.attention.queries.as<float>() + first_vector_ * dim_, q_heads * dim_, tile_.queries, dim_);
    std::fill_n(output_, kSide * stride_of(dim_), 0.0F);
    std::fill_n(largest_, kSide, kLowest);
    for_key_tiles(tile_, [&](const Tile& tile) {
      const int64_t token = tile.segment.first_token + tile.first_key;
      find_logits(tile, keys.row(tile.kv_head, token), queries_, by_key_);
      softmax(tile);
      transpose(by_key_, tile.keys, tile.queries, kTileStride, by_query_, kTileStride);
      add_over_keys(tile, by_query_, values.row(tile.kv_head, token), 1, output_);
    });
    for (int64_t i = 0; i < tile_.queries; ++i) {
      float* to = args_.output.as<float>() + (first_vector_ + i * q_heads) * dim_;
      for (int64_t d = 0; d < dim_; ++d) to[d] = output_[i * stride_of(dim_) + d] / sums_[i];
      args_.log_sums[first_vector_ + i * q_heads] = largest_[i] + std::log(sums_[i]);
    }
  }

 private:
  // Logits become e^(logit − largest so far), what was summed up before shrinks accordingly.
  void softmax(const Tile& tile) {
    float before[kSide], sums[kSide] = {};
    std::copy_n(largest_, kSide, before);
    for (int64_t row = 0; row < tile.keys; ++row) {
      float* logits = by_key_ + row * kTileStride;
      std::fill_n(logits, tile.first_seeing(row), -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < tile.queries; ++i) largest_[i] = logits[i] > largest_[i] ? logits[i] : largest_[i];
    }
    for (int64_t row = 0; row < tile.keys; ++row) {
      float* logits = by_key_ + row * kTileStride;
#pragma omp simd
      for (int64_t i = 0; i < tile.queries; ++i) {
        logits[i] = fast_exp(logits[i] - largest_[i]);
        sums[i] += logits[i];
      }
    }
    for (int64_t i = 0; i < tile.queries; ++i) {
      const float shrink = fast_exp(before[i] - largest_[i]);
      sums_[i] = sums_[i] * shrink + sums[i];
      float* output = output_ + i * stride_of(dim_);
      for (int64_t d = 0; d < dim_; ++d) output[d] *= shrink;
    }
  }

  const BiasedAttentionArgs& args_;
  const Tile& tile_;
  int64_t dim_;
  int64_t first_vector_;  // in the packed tensors
  QueryRows queries_;
  float *output_, *by_key_, *by_query_;
  float largest_[kSide];
  float sums_[kSide] = {};
};

}  // namespace

void biased_attention(const BiasedAttentionArgs& args) {
  const PackedAttention& attention = args.attention;
  check(attention);
  const HeadRows keys = head_rows(attention, attention.keys), values = head_rows(attention, attention.values);
  const int64_t tiles = ceil_div(attention.max_count, kSide), heads = attention.segment_count * attention.q_heads;
  const int64_t floats = Attended::floats(attention.head_dim);
  const Scratch scratch(floats * thread_count());
  parallel_for(tiles * heads, [&](int64_t task, int thread) {
    // Late tiles see the most keys: they start first.
    const int64_t first = (tiles - 1 - task / heads) * kSide, q_head = task % attention.q_heads;
    const Segment& segment = attention.segments[task % heads / attention.q_heads];
    if (first >= segment.count) return;
    const Tile tile{.attention = attention,
                    .segment = segment,
                    .kv_head = q_head / attention.group(),
                    .first_query = first,
                    .queries = std::min(kSide, segment.count - first)};
    Attended(args, tile, q_head, scratch.data() + thread * floats).run(keys, values);
  });
}

namespace {

// Gradients of keys, values and biases. Tiles of queries are dealt in turn to the shares of a (segment, KV head), which
// evens out the causal triangle; each adds up its own, and they are added in their order: their number does not depend
// on threads.
struct KeyGradients {
  const PackedAttention& attention;
  int64_t shares;
  HeadRows keys, values;  // [shares · kv_heads, tokens]
  Scratch biases;         // [shares · kv_heads, tokens]

  explicit KeyGradients(const PackedAttention& of)
      : attention(of),
        shares(std::clamp<int64_t>(ceil_div(kTasks, std::max<int64_t>(1, of.segment_count * of.kv_heads)), 1,
                                   std::max<int64_t>(1, ceil_div(of.max_count, kSide)))),
        keys(shares * of.kv_heads, of.tokens, of.head_dim),
        values(shares * of.kv_heads, of.tokens, of.head_dim),
        biases(shares * of.kv_heads * of.tokens) {}

  float* bias(int64_t share_head, int64_t token) const { return biases.data() + share_head * attention.tokens + token; }

  void clear(int64_t share_head, const Segment& segment) const {
    const int64_t first = segment.first_token, count = segment.count;
    std::fill_n(keys.row(share_head, first), count * keys.stride(), 0.0F);
    std::fill_n(values.row(share_head, first), count * values.stride(), 0.0F);
    std::fill_n(bias(share_head, first), count, 0.0F);
  }

  // The sum of the shares, of one token's KV head.
  void write(const BiasedAttentionBackwardArgs& to, int64_t kv_head, int64_t token) const {
    const int64_t dim = attention.head_dim, place = token * attention.kv_heads + kv_head;
    const auto add_up = [&](const auto& part, int64_t count, float* sums) {
      for (int64_t share = 0; share < shares; ++share) {
        const float* from = part(share * attention.kv_heads + kv_head);
        for (int64_t d = 0; d < count; ++d) sums[d] = (share == 0 ? 0 : sums[d]) + from[d];
      }
    };
    if (!to.asks_of_bias_alone()) {
      add_up([&](int64_t head) { return keys.row(head, token); }, dim, to.key_gradient.as<float>() + place * dim);
      add_up([&](int64_t head) { return values.row(head, token); }, dim, to.value_gradient.as<float>() + place * dim);
    }
    if (to.bias_gradient) add_up([&](int64_t head) { return bias(head, token); }, 1, to.bias_gradient + place);
  }
};

// Backward of the queries of one tile.
class AttendedBackward {
 public:
  static int64_t floats(int64_t dim) { return 2 * QueryRows::floats(dim) + kSide * stride_of(dim) + 3 * kTileFloats; }
  AttendedBackward(const BiasedAttentionBackwardArgs& args, const Tile& tile, int64_t q_head, float* memory)
      : args_(args),
        tile_(tile),
        dim_(args.attention.head_dim),
        first_vector_((tile.segment.first_token + tile.first_query) * args.attention.q_heads + q_head),
        queries_(memory, dim_),
        output_gradient_(memory + QueryRows::floats(dim_), dim_),
        query_gradient_(memory + 2 * QueryRows::floats(dim_)),
        p_(query_gradient_ + kSide * stride_of(dim_)),
        ds_(p_ + kTileFloats),
        by_query_(ds_ + kTileFloats) {}

  // Adds to the gradients of `share_head`.
  void run(const HeadRows& keys, const HeadRows& values, const KeyGradients& gradients, int64_t share_head) {
    load();
    const float scale = args_.attention.scale;
    for_key_tiles(tile_, [&](const Tile& tile) {
      const int64_t token = tile.segment.first_token + tile.first_key;
      const float* tile_keys = keys.row(tile.kv_head, token);
      find_logits(tile, tile_keys, queries_, p_);
      multiply_pairs(tile, values.row(tile.kv_head, token), output_gradient_, 1, ds_);
      for (int64_t row = 0; row < tile.keys; ++row) {
        find_slopes(tile, row);
        if (args_.bias_gradient) {
          *gradients.bias(share_head, token + row) += bias_slope(tile, row, ds_ + row * kTileStride);
        }
      }
      if (args_.asks_of_bias_alone()) return;
      add_over_queries(tile, p_, output_gradient_.rows, 1, gradients.values.row(share_head, token));
      add_over_queries(tile, ds_, queries_.rows, scale, gradients.keys.row(share_head, token));
      transpose(ds_, tile.keys, tile.queries, kTileStride, by_query_, kTileStride);
      add_over_keys(tile, by_query_, tile_keys, scale, query_gradient_);
    });
    for (int64_t i = 0; !args_.asks_of_bias_alone() && i < tile_.queries; ++i) {
      std::copy_n(query_gradient_ + i * stride_of(dim_), dim_, args_.query_gradient.as<float>() + vector(i) * dim_);
    }
  }

 private:
  // Of a query, in the packed tensors.
  int64_t vector(int64_t query) const { return first_vector_ + query * args_.attention.q_heads; }

  void load() {
    const int64_t step = args_.attention.q_heads * dim_;
    const float* output_gradient = args_.output_gradient.as<float>() + first_vector_ * dim_;
    queries_.load(args_.attention.queries.as<float>() + first_vector_ * dim_, step, tile_.queries, dim_);
    output_gradient_.load(output_gradient, step, tile_.queries, dim_);
    std::fill_n(query_gradient_, kSide * stride_of(dim_), 0.0F);
    for (int64_t i = 0; i < tile_.queries; ++i) {
      log_sums_[i] = args_.log_sums[vector(i)];
      mean_slopes_[i] = dot(output_gradient + i * step, args_.output.as<float>() + vector(i) * dim_, dim_);
    }
  }

  // Logits of a key become probabilities, products of its value with the output's gradient slopes of the logits.
  void find_slopes(const Tile& tile, int64_t row) {
    float *p = p_ + row * kTileStride, *ds = ds_ + row * kTileStride;
    const int64_t first = tile.first_seeing(row);
    std::fill_n(p, first, 0.0F);
    std::fill_n(ds, first, 0.0F);
#pragma omp simd
    for (int64_t i = first; i < tile.queries; ++i) {
      p[i] = fast_exp(p[i] - log_sums_[i]);
      ds[i] = p[i] * (ds[i] - mean_slopes_[i]);
    }
  }

  const BiasedAttentionBackwardArgs& args_;
  const Tile& tile_;
  int64_t dim_;
  int64_t first_vector_;
  QueryRows queries_, output_gradient_;
  float *query_gradient_, *p_, *ds_, *by_query_;
  float log_sums_[kSide] = {};
  float mean_slopes_[kSide] = {};  // D
};

}  // namespace

void biased_attention_backward(const BiasedAttentionBackwardArgs& args) {
  const PackedAttention& attention = args.attention;
  check(attention);
  KV_CHECK((attention.bias.form == KeyBias::Form::kNone) == (args.bias_gradient == nullptr));
  const HeadRows keys = head_rows(attention, attention.keys), values = head_rows(attention, attention.values);
  const KeyGradients gradients(attention);
  const int64_t kv_heads = attention.kv_heads, group = attention.group();
  const int64_t floats = AttendedBackward::floats(attention.head_dim);
  const Scratch scratch(floats * thread_count());
  parallel_for(attention.segment_count * gradients.shares * kv_heads, [&](int64_t task, int thread) {
    const int64_t share_head = task % (gradients.shares * kv_heads), kv_head = share_head % kv_heads;
    const Segment& segment = attention.segments[task / (gradients.shares * kv_heads)];
    gradients.clear(share_head, segment);
    for (int64_t first = share_head / kv_heads * kSide; first < segment.count; first += gradients.shares * kSide) {
      const Tile tile{.attention = attention,
                      .segment = segment,
                      .kv_head = kv_head,
                      .first_query = first,
                      .queries = std::min(kSide, segment.count - first)};
      for (int64_t g = 0; g < group; ++g) {
        AttendedBackward(args, tile, kv_head * group + g, scratch.data() + thread * floats)
            .run(keys, values, gradients, share_head);
      }
    }
  });
  parallel_for(attention.segment_count * kv_heads, [&](int64_t task) {
    const Segment& segment = attention.segments[task / kv_heads];
    for (int64_t i = 0; i < segment.count; ++i) gradients.write(args, task % kv_heads, segment.first_token + i);
  });
}

}  // namespace kv::cpu
