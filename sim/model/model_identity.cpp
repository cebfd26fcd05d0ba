#include "sim/model/model_identity.h"

#include <utility>

#include "kernels/check.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"

namespace kv {

ModelIdentity::ModelIdentity(std::filesystem::path files, std::function<Shape()> shape)
    : files_(std::move(files)), find_shape_(std::move(shape)) {}

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

ModelIdentity identity_of_files(const std::filesystem::path& files) {
  return {files, [files] {
            const ModelConfig config = load_model_config(files);
            return ModelIdentity::Shape{config.layers, config.kv_heads};
          }};
}

}  // namespace kv
