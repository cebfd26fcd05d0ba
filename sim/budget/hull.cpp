#include "sim/budget/hull.h"

#include "kernels/check.h"

namespace kv {

namespace {

struct Block {
  double gain;  // mean
  double sum;
  int32_t count;
};

std::vector<Block> pool(std::span<const float> gains) {
  std::vector<Block> blocks;
  for (const float gain : gains) {
    Block block{.gain = gain, .sum = gain, .count = 1};
    // Means are compared as they are stored, so that the result never rises, whatever the rounding.
    while (!blocks.empty() && blocks.back().gain < block.gain) {
      block.sum += blocks.back().sum;
      block.count += blocks.back().count;
      block.gain = block.sum / block.count;
      blocks.pop_back();
    }
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace

std::vector<double> pool_adjacent_violators(std::span<const float> gains) {
  std::vector<double> pooled;
  pooled.reserve(gains.size());
  for (const Block& block : pool(gains)) pooled.insert(pooled.end(), static_cast<size_t>(block.count), block.gain);
  return pooled;
}

LossHull loss_hull(const HeadGains& head) {
  KV_CHECK(head.least >= 0 && static_cast<size_t>(head.least) <= head.gains.size());
  const std::vector<Block> blocks = pool(head.gains.subspan(static_cast<size_t>(head.least)));
  LossHull hull{.counts = std::vector<int32_t>(blocks.size() + 1, head.least),
                .losses = std::vector<double>(blocks.size() + 1, 0.0),
                .gains = std::vector<double>(blocks.size())};
  for (size_t i = 0; i < blocks.size(); ++i) {
    hull.counts[i + 1] = hull.counts[i] + blocks[i].count;
    hull.gains[i] = blocks[i].gain;
  }
  // From the tail: the small gains first, and the loss of keeping everything is 0 exactly.
  for (size_t i = blocks.size(); i-- > 0;) hull.losses[i] = hull.losses[i + 1] + blocks[i].sum;
  return hull;
}

}  // namespace kv
