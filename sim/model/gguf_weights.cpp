#include "sim/model/gguf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/io/strict_json.h"
#include "sim/model/activations.h"
#include "sim/model/gguf_config.h"

namespace kv {
namespace {

constexpr int64_t kPieceValues = 1 << 22;

// Heads [head_dim, width] in which dimensions that turn together are neighbours, to those in which they are half a head
// apart.
void move_pairs_apart(std::span<float> heads, int64_t head_dim, int64_t width) {
  const auto row = static_cast<size_t>(width), size = static_cast<size_t>(head_dim) * row;
  std::vector<float> head(size);
  for (size_t first = 0; first < heads.size(); first += size) {
    std::copy_n(heads.begin() + static_cast<std::ptrdiff_t>(first), size, head.begin());
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t to = i / 2 + i % 2 * head_dim / 2;
      std::copy_n(&head[static_cast<size_t>(i) * row], row, &heads[first + static_cast<size_t>(to) * row]);
    }
  }
}

bool turns(std::string_view name) { return name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos; }

}  // namespace

GgufWeights::GgufWeights(const std::filesystem::path& path)
    : path_(path), file_(GgufFile::open(path)), config_(gguf_model_config(file_)) {
  check_tensors();
}

std::filesystem::path GgufWeights::folder() const { return std::filesystem::absolute(path_).parent_path(); }

void GgufWeights::check_tensors() const {
  std::set<std::string, std::less<>> places = {std::string(kGgufRopeFactors)};
  for (const ExpectedTensor& expected : expected_tensors(config_)) {
    const std::string name = gguf_tensor_name(expected.name);
    const GgufTensor* tensor = file_.find(name);
    if (!tensor) {
      throw UserError(fmt::format("{}: tensor {} is missing; the metadata ask for it with shape {}", file_.name(),
                                  in_quotes(name), shape_text(expected.shape)));
    }
    if (tensor->shape != expected.shape) {
      throw UserError(fmt::format("{}: tensor {}: shape {}, expected {} from the metadata", file_.name(),
                                  in_quotes(name), shape_text(tensor->shape), shape_text(expected.shape)));
    }
    places.insert(name);
  }
  for (const GgufTensor& tensor : file_.tensors()) {
    if (places.contains(tensor.name)) continue;
    throw UserError(fmt::format("{}: tensor {} has no place in a {} model of {} layers as the metadata describe it",
                                file_.name(), in_quotes(tensor.name), family_name(config_.family), config_.layers));
  }
}

Tensor GgufWeights::load(const ExpectedTensor& expected, Backend& backend) const {
  const GgufTensor& stored = *file_.find(gguf_tensor_name(expected.name));
  const int64_t elements = stored.elements();
  const bool moves = gguf_pairs_are_neighbours(config_) && turns(expected.name);
  const int64_t width = stored.shape.size() == 2 ? stored.shape[1] : 1;
  // A vector is read whole: its blocks, if it has any, may not end where heads do.
  const int64_t unit = stored.shape.size() == 1 ? elements : moves ? config_.head_dim * width : width;
  const int64_t size = std::max(unit, kPieceValues / unit * unit);
  Tensor tensor(backend, backend.activation_type(), elements);
  std::vector<float> piece;
  for (int64_t first = 0; first < elements; first += size) {
    piece.resize(static_cast<size_t>(std::min(size, elements - first)));
    file_.read_f32(stored, first, piece);
    if (moves) move_pairs_apart(piece, config_.head_dim, width);
    upload_activations(backend, tensor.at(first), piece);
  }
  return tensor;
}

}  // namespace kv
