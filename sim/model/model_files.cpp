#include "sim/model/model_files.h"

#include "sim/io/gguf.h"
#include "sim/io/hash.h"
#include "sim/io/mapped_file.h"
#include "sim/model/gguf_config.h"
#include "sim/model/gguf_weights.h"
#include "sim/model/safetensors_weights.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<const Weights> open_weights(const fs::path& path) {
  if (is_gguf(path)) return std::make_unique<GgufWeights>(path);
  return std::make_unique<SafetensorsWeights>(path);
}

}  // namespace

ModelFiles::ModelFiles(const fs::path& path) : weights_(open_weights(path)) {}

bool is_model(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) || (is_gguf(path) && fs::exists(path, error));
}

ModelConfig load_model_config(const fs::path& path) {
  return is_gguf(path) ? gguf_model_config(GgufFile::open(path)) : load_folder_config(path);
}

fs::path folder_of_model(const fs::path& path) { return is_gguf(path) ? fs::absolute(path).parent_path() : path; }

std::string fingerprint(const fs::path& path) {
  return is_gguf(path) ? sha256_hex(MappedFile::open(path).bytes()) : folder_fingerprint(path);
}

}  // namespace kv
