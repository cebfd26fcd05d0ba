#include "kernels/cuda/retention_gate/retention_gate.cuh"

namespace kv::cuda {

namespace {

void check(const RetentionGateArgs& args) {
  KV_CHECK(args.hidden > 0 && args.width > 0 && args.kv_heads > 0);
  KV_CHECK(args.embeddings == 1 || (args.hidden_weights && args.embeddings == args.kv_heads));
}

}  // namespace

void retention_gate(const RetentionGateArgs& args) {
  check(args);
  if (args.tokens == 0) return;
  is_narrow(args) ? run_narrow_forward(args) : run_wide_forward(args);
}

void retention_gate_backward(const RetentionGateBackwardArgs& args) {
  check(args.forward);
  if (args.forward.tokens == 0) return;
  is_narrow(args.forward) ? run_narrow_backward(args) : run_wide_backward(args);
}

}  // namespace kv::cuda
