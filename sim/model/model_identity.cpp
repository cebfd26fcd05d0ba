#include "sim/model/model_identity.h"

#include <utility>

#include "kernels/check.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"

namespace kv {

ModelIdentity::ModelIdentity(std::filesystem::path files, std::function<Shape()> shape)
    : files_(std::move(files)), find_shape_(std::move(shape)) {}

bool ModelIdentity::is_absent() const {
  std::error_code error;
  return !files_.empty() && !std::filesystem::exists(files_, error);
}

std::filesystem::path ModelIdentity::folder() const { return files_.empty() ? files_ : folder_of_model(files_); }

ModelIdentity::Shape ModelIdentity::shape() const {
  if (!shape_) shape_ = find_shape_();
  return *shape_;
}

const std::string& ModelIdentity::fingerprint() const {
  KV_CHECK(!files_.empty());
  if (fingerprint_.empty()) fingerprint_ = kv::fingerprint(files_);
  return fingerprint_;
}

ModelIdentity::Shape shape_of(const ModelConfig& config) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .q_heads = config.heads,
          .head_dim = config.head_dim,
          .width = config.hidden_size};
}

SourceInfo info_of(const ModelIdentity::Shape& shape) {
  return {.layers = shape.layers,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .width = shape.width};
}

ModelIdentity identity_of_files(const std::filesystem::path& files) {
  return {files, [files] { return shape_of(load_model_config(files)); }};
}

}  // namespace kv
