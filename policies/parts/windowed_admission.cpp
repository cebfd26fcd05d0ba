#include "policies/parts/windowed_admission.h"

#include <algorithm>

#include "policies/parts/options.h"

namespace kv {

WindowedAdmission::WindowedAdmission(Params& params, int sinks, int window)
    : sinks_(option_at_least(params, 0, "sinks", sinks, "first tokens of a sequence, which stay")),
      window_(option_at_least(params, 1, "window", window, "tokens for which any entry is seen, its own among them")) {}

void WindowedAdmission::admit(const LayerView& view, int32_t* expires) {
  ExpiryArgs args{.segments = view.device_segments,
                  .segment_count = std::ssize(view.segments),
                  .layers = view.layers,
                  .kv_heads = view.kv_heads,
                  .sinks = sinks_,
                  .window = window_,
                  .expires = expires};
  for (const Segment& segment : view.segments) {
    args.max_count = std::max<int64_t>(args.max_count, segment.count);
    args.tokens += segment.count;
  }
  decide(view, args);
  view.backend.expiry(args);
}

}  // namespace kv
