#include "sim/model/model_identity.h"

#include <utility>

#include "kernels/check.h"
#include "sim/model/model_config.h"
#include "sim/model/weights.h"

namespace kv {

ModelIdentity::ModelIdentity(std::filesystem::path folder, std::function<Shape()> shape)
    : folder_(std::move(folder)), find_shape_(std::move(shape)) {}

ModelIdentity::Shape ModelIdentity::shape() const {
  if (!shape_) shape_ = find_shape_();
  return *shape_;
}

const std::string& ModelIdentity::fingerprint() const {
  KV_CHECK(!folder_.empty());
  if (fingerprint_.empty()) fingerprint_ = kv::fingerprint(folder_);
  return fingerprint_;
}

ModelIdentity identity_of_files(const std::filesystem::path& folder) {
  return {folder, [folder] {
            const ModelConfig config = load_model_config(folder);
            return ModelIdentity::Shape{config.layers, config.kv_heads};
          }};
}

}  // namespace kv
