#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/source/model_source.h"
#include "sim/source/trace.h"
#include "sim/tasks/sample.h"

namespace kv {

struct RecordOptions {
  std::vector<int> layers;    // model's numbers; empty = all
  Dtype dtype = Dtype::kF32;  // kF32 or kBF16, of the per-layer tensors
  std::string model;          // name to store
};

// Runs the model over the sample with a full cache and writes a trace (sim/source/trace.h), block by block.
// Throws UserError for a layer the model lacks or a file that cannot be written; nothing is left behind then.
void record_trace(const std::filesystem::path& path, Backend& backend, ModelSource& source, const Sample& sample,
                  const RecordOptions& options);

}  // namespace kv
