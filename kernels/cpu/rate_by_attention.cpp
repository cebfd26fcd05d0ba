#include "kernels/rate_by_attention.h"

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void rate_by_attention(const RateByAttentionArgs& args) {
  const PagedView& cache = args.rate.cache;
  check_parts(args);
  RateByAttentionArgs parts = args;
  const int64_t vectors = cache.rows * args.fold.planes;
  const Scratch own(args.fold.features ? 0 : vectors * cache.max_length);
  if (!args.fold.features) parts.fold.features = {own.data(), vectors, cache.max_length};
  parts.window.scores = parts.fold.features;
  parts.rate.network.features = parts.fold.features;
  window_attention(parts.window);
  attention_columns_fold(parts.fold);
  rate_entries(parts.rate);
}

}  // namespace kv::cpu
