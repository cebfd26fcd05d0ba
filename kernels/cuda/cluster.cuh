#pragma once

#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

// Neighbouring blocks that run at the same time and write to each other's shared memory, in Hopper's own code:
// elsewhere a cluster is one block.
struct Cluster {
  static constexpr int kMost = 8;  // that every Hopper has room for
  int blocks;                      // a power of two

  static int most() { return compute_capability() == 90 ? kMost : 1; }

  __device__ int rank() const { return static_cast<int>(blockIdx.x) % blocks; }
  // __syncthreads() of all blocks. What write() has written before is there for all, and whoever is behind the first of
  // them may be written to; behind the last one a block may end.
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (blocks == 1) return;
    asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
  }
  // To where `own`, in shared memory, lies in another block, or in this one.
  template <class T>
  __device__ void write(T* own, const T& value, int to_rank) const {
#if __CUDA_ARCH__ >= 900
    T* there;
    asm volatile("mapa.u64 %0, %1, %2;\n" : "=l"(there) : "l"(own), "r"(to_rank));
    *there = value;
#else
    *own = value;
#endif
  }
};

// launch() of so many clusters.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), int64_t clusters, const Cluster& cluster, int threads,
                     size_t shared_bytes, const Args&... args) {
  if (cluster.blocks == 1) return launch(kernel, clusters, threads, shared_bytes, args...);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeClusterDimension;
  together.val.clusterDim = {static_cast<unsigned>(cluster.blocks), 1, 1};
  launch_with(together, kernel, clusters * cluster.blocks, threads, shared_bytes, args...);
}

}  // namespace kv::cuda
