#include "kernels/redundancy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

constexpr int64_t kRowBlock = 512;
constexpr int64_t kColumnTile = 64;

class RowRedundancy {
 public:
  RowRedundancy(const RedundancyArgs& args, int64_t row)
      : args_(args),
        length_(args.cache.lengths[row]),
        dim_(args.cache.head_dim),
        wanted_(wanted_hits(args, length_)),
        keys_(length_ * dim_),
        unit_(length_ * dim_),
        inverse_norms_(length_),
        retained_(length_, 0) {
    gather_keys(args.cache, row, 0, length_, keys_.data());
    normalise();
  }

  void score(float* scores) {
    if (length_ == 0) return;
    find_retained();
    column_means(scores);
    const float total = exp_row(scores, length_, largest(scores, length_));
    for (int64_t j = 0; j < length_; ++j) scores[j] /= total;
  }

 private:
  const float* unit(int64_t slot) const { return unit_.data() + slot * dim_; }

  void normalise() {
    for (int64_t slot = 0; slot < length_; ++slot) {
      const float* key = keys_.data() + slot * dim_;
      float* out = unit_.data() + slot * dim_;
      const double inverse = 1 / (std::sqrt(dot<double>(key, key, dim_)) + 1e-8);
      inverse_norms_[slot] = inverse;
#pragma omp simd
      for (int64_t d = 0; d < dim_; ++d) out[d] = static_cast<float>(key[d] * inverse);
    }
  }

  // S_ij > threshold, decided in double.
  bool similar_exactly(int64_t i, int64_t j) const {
    const double product = dot<double>(keys_.data() + i * dim_, keys_.data() + j * dim_, dim_);
    return (i == j ? 0.0 : product * inverse_norms_[i] * inverse_norms_[j]) > static_cast<double>(args_.threshold);
  }

  // How many hits, counted from the newest, end a row's search.
  static int64_t wanted_hits(const RedundancyArgs& args, int64_t length) {
    if (args.retain == RedundancyArgs::Retain::kLast) return 1;
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<float>(length) * args.retain_ratio));
  }

  void find_retained() {
    const Scratch rows(kRowBlock * dim_), similarity(kRowBlock * kColumnTile);
    for (int64_t first = 0; first < length_; first += kRowBlock) {
      search_block(first, std::min(length_, first + kRowBlock), rows.data(), similarity.data());
    }
  }

  // r(i) of rows [first, end): column tiles from the newest to the oldest; rows that have what they want drop out.
  void search_block(int64_t first, int64_t end, float* packed, float* similarity) {
    std::vector<int64_t> open(end - first);
    std::iota(open.begin(), open.end(), first);
    std::vector<int64_t> hits(end - first, 0);
    const float* rows = unit(first);
    for (int64_t tile_end = length_; tile_end > 0 && !open.empty(); tile_end -= std::min(tile_end, kColumnTile)) {
      const int64_t tile = std::max<int64_t>(0, tile_end - kColumnTile);
      const int64_t columns = tile_end - tile;
      gemm_nt(rows, static_cast<int64_t>(open.size()), dim_, unit(tile), columns, dim_, dim_, similarity, kColumnTile);
      size_t left = 0;
      for (size_t k = 0; k < open.size(); ++k) {
        const int64_t i = open[k];
        if (search_tile(i, similarity + k * kColumnTile, tile, columns, hits[i - first])) continue;
        // Moves towards the front only, so the rows still to be read stay whole.
        std::copy_n(rows + k * dim_, dim_, packed + left * dim_);
        open[left++] = i;
      }
      open.resize(left);
      rows = packed;
    }
  }

  // Takes the tile's hits from its newest column on; true once row i needs no more.
  bool search_tile(int64_t i, float* similarity, int64_t tile, int64_t columns, int64_t& hits) {
    if (i >= tile && i < tile + columns) similarity[i - tile] = 0;
    // A dot of dim f32 products of rounded unit vectors is at most this far from the exact one; what lies closer to the
    // threshold is decided in double, so that the choice never depends on rounding.
    const float doubt = static_cast<float>(dim_ + 8) * std::numeric_limits<float>::epsilon();
    const float low = args_.threshold - doubt;
    const float high = args_.threshold + doubt;
    if (!(largest(similarity, columns) > low)) return false;
    for (int64_t j = columns - 1; j >= 0; --j) {
      if (!(similarity[j] > low)) continue;
      if (!(similarity[j] > high) && !similar_exactly(i, tile + j)) continue;
      retained_[i] = tile + j;
      if (++hits == wanted_) return true;
    }
    return false;
  }

  void column_means(float* means) const {
    std::vector<double> sum(dim_), forgiven(length_);
    for (int64_t i = 0; i < length_; ++i) {
      const float* row = unit(i);
      double* to = sum.data();
#pragma omp simd
      for (int64_t d = 0; d < dim_; ++d) to[d] += row[d];
      // S_ii is 0 already; nothing is forgiven twice.
      if (retained_[i] != i) forgiven[retained_[i]] += dot(row, unit(retained_[i]), dim_);
    }
    const std::vector<float> total(sum.begin(), sum.end());
    for (int64_t j = 0; j < length_; ++j) {
      const double all = dot(unit(j), total.data(), dim_);
      const double self = dot(unit(j), unit(j), dim_);
      means[j] = static_cast<float>((all - self - forgiven[j]) / static_cast<double>(length_));
    }
  }

  const RedundancyArgs& args_;
  int64_t length_;
  int64_t dim_;
  int64_t wanted_;
  Scratch keys_;
  Scratch unit_;
  std::vector<double> inverse_norms_;
  std::vector<int64_t> retained_;
};

}  // namespace

void redundancy(const RedundancyArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) RowRedundancy(args, row).score(args.scores.row(row));
  });
}

}  // namespace kv::cpu
