#include "kernels/embed.h"

#include <cstring>

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void embed(const EmbedArgs& args) {
  const auto* table = args.table.as<float>();
  auto* output = args.output.as<float>();
  parallel_blocks(args.rows, 256, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      std::memcpy(output + r * args.width, table + args.ids[r] * args.width,
                  static_cast<size_t>(args.width) * sizeof(float));
    }
  });
}

}  // namespace kv::cpu
