#include "sim/model/forward.h"

#include <gtest/gtest.h>

#include "sim/model/model_files.h"
#include "tests/support/backends.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

// One block on its way through two layers whose heads put out their own queries, beside whatever else runs.
class Walk {
 public:
  Walk(Backend& backend, const ForwardModel& model, const std::vector<int32_t>& ids, int32_t first_position)
      : model_(model), tokens_(std::ssize(ids)), ids_(ref::upload_array(backend, ids)) {
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < tokens_; ++i) positions.push_back(first_position + i);
    positions_ = ref::upload_array(backend, positions);
    buffers_.reserve(backend, model.config, tokens_);
  }

  void embed() { embed_tokens(model_, block(), ref::data_of<int32_t>(ids_), buffers_.hidden.ref()); }
  void take(int layer) {
    const LayerActivations to = buffers_.layer();
    absorb_layer(model_, block(), layer, project_layer(model_, block(), layer, to).queries, to);
  }
  std::vector<float> logits(Backend& backend) {
    norm_head(model_, buffers_.hidden.ref(), tokens_, buffers_.normed.ref());
    Tensor logits(backend, DType::kF32, tokens_ * model_.config.vocab_size);
    head_logits(model_, buffers_.normed.ref(), tokens_, ref::data_of<float>(logits));
    return ref::download_array<float>(logits);
  }

 private:
  ForwardBlock block() { return {.tokens = tokens_, .positions = ref::data_of<int32_t>(positions_)}; }

  const ForwardModel& model_;
  int64_t tokens_;
  Tensor ids_, positions_;
  ForwardBuffers buffers_;
};

KV_OVER_BACKENDS(Runs, Forward);

// Everything that a pass writes is in its buffers, so two may take turns.
TEST_P(Forward, PassesWithBuffersOfTheirOwnDoNotMeet) {
  KV_BACKEND_OR_SKIP(backend);
  const ModelFiles files = load_model(ref::source_path("tests/data/llama"));
  const ModelTensors weights = load_tensors(files, *backend);
  const ForwardModel model = forward_model(*backend, files.config(), weights);
  const auto alone = [&](const std::vector<int32_t>& ids, int32_t position) {
    Walk walk(*backend, model, ids, position);
    walk.embed();
    for (const int layer : {0, 1}) walk.take(layer);
    return walk.logits(*backend);
  };
  Walk first(*backend, model, {5, 6, 7}, 0), second(*backend, model, {9, 8}, 30);
  first.embed();
  second.embed();
  for (const int layer : {0, 1}) {
    first.take(layer);
    second.take(layer);
  }
  const std::vector<float> logits = first.logits(*backend);
  EXPECT_EQ(logits, alone({5, 6, 7}, 0));
  EXPECT_EQ(second.logits(*backend), alone({9, 8}, 30));
  EXPECT_NE(logits, alone({5, 6, 8}, 0));
}

// What a run's memory is foretold by.
TEST_P(Forward, BuffersTakeTheBytesThatAreForetold) {
  KV_BACKEND_OR_SKIP(backend);
  const ModelConfig config = load_model_config(ref::source_path("tests/data/llama"));
  const size_t before = backend->bytes_in_use();
  ForwardBuffers buffers;
  buffers.reserve(*backend, config, 7);
  EXPECT_EQ(backend->bytes_in_use() - before, ForwardBuffers::bytes(*backend, config, 7));
}

}  // namespace
}  // namespace kv
