#include "kernels/cuda/record.cuh"

#include "kernels/cuda/arena.cuh"
#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

namespace {

class GraphRecording final : public Recording {
 public:
  explicit GraphRecording(const std::function<void()>& work) {
    // Relaxed: scratch memory that is not there yet is allocated, on another stream, while the capture goes on.
    KV_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed));
    set_arena(&arena_);
    try {
      work();
    } catch (...) {  // such as scratch that does not fit: the stream must be usable afterwards
      discard(end_capture());
      throw;
    }
    cudaGraph_t graph = end_capture();
    KV_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    discard(graph);
    KV_CHECK(arena_.is_idle());  // `work` keeps no memory
  }
  ~GraphRecording() override { cudaGraphExecDestroy(executable_); }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void run() override { KV_CUDA_CHECK(cudaGraphLaunch(executable_, stream())); }

 private:
  static cudaGraph_t end_capture() {
    set_arena(nullptr);
    cudaGraph_t graph = nullptr;
    KV_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
    return graph;
  }
  static void discard(cudaGraph_t graph) {
    if (graph) KV_CUDA_CHECK(cudaGraphDestroy(graph));
  }

  Arena arena_;  // outlives the graph that uses it
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<Recording> record(const std::function<void()>& work) { return std::make_unique<GraphRecording>(work); }

}  // namespace kv::cuda
