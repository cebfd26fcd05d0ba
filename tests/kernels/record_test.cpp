#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/advance.h"
#include "kernels/error.h"
#include "kernels/token_loss.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Record);

// One head, one layer, one sequence: each run makes its length one longer.
TEST_P(Record, RunsItsOpsAtEachRunAndNotBefore) {
  KV_BACKEND_OR_SKIP(backend);
  Tensor segments = ref::upload_segments(*backend, {{0, 0, 1, 5}});
  Tensor positions = ref::upload_array(*backend, std::vector<int32_t>{5});
  Tensor lengths = ref::upload_array(*backend, std::vector<int32_t>{6});
  const auto recording = backend->record([&] {
    backend->advance({.segments = reinterpret_cast<Segment*>(ref::data_of<int32_t>(segments)),
                      .segment_count = 1,
                      .positions = ref::data_of<int32_t>(positions),
                      .lengths = ref::data_of<int32_t>(lengths),
                      .layers = 1,
                      .rows = 1,
                      .kv_heads = 1});
  });
  EXPECT_EQ(ref::download_array<int32_t>(lengths)[0], 6);
  for (int i = 0; i < 3; ++i) recording->run();
  EXPECT_EQ(ref::download_array<int32_t>(lengths)[0], 9);
  EXPECT_EQ(ref::download_array<int32_t>(positions)[0], 8);
}

// On the CPU the work first runs when the recording does.
TEST_P(Record, WorkThatThrowsLeavesTheBackendUsable) {
  KV_BACKEND_OR_SKIP(backend);
  const auto record_and_run = [&] { backend->record([] { throw MemoryError("too large"); })->run(); };
  EXPECT_THROW(record_and_run(), MemoryError);
  const std::vector<int32_t> values = {1, 2, 3};
  const Tensor tensor = ref::upload_array(*backend, values);
  backend->synchronize();
  EXPECT_EQ(ref::download_array<int32_t>(tensor), values);
}

// A GPU cannot record it. On the CPU it would work, so there it stops the program, with its name.
TEST(RecordOnCpu, WorkThatReachesForTheHostIsStopped) {
  const auto backend = make_backend("cpu");
  Tensor tensor = ref::upload_array(*backend, std::vector<int32_t>{1});
  int32_t value = 0;
  const auto record_and_run = [&](const std::function<void()>& work) { backend->record(work)->run(); };
  const char* const stopped = "internal error: ops alone inside a recording \\(Backend::record\\), no ";
  EXPECT_DEATH(record_and_run([&] { tensor.upload(&value, sizeof value); }), std::string(stopped) + "upload");
  EXPECT_DEATH(record_and_run([&] { tensor.download(&value, sizeof value); }), std::string(stopped) + "download");
  EXPECT_DEATH(record_and_run([&] { backend->synchronize(); }), std::string(stopped) + "synchronize");
  EXPECT_DEATH(record_and_run([&] { backend->mark(); }), std::string(stopped) + "mark");
}

// token_loss works in scratch memory of its own; between the runs other ops use memory, too.
TEST_P(Record, KeepsItsScratchMemoryApart) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int64_t kRows = 3, kWidth = 16, kVocab = 80;
  const Tensor weight = ref::upload_activations(*backend, ref::random_values(kVocab * kWidth, 1));
  const Tensor targets = ref::upload_array(*backend, std::vector<int32_t>(kRows, 4));
  Tensor hidden = ref::upload_activations(*backend, ref::random_values(kRows * kWidth, 2));
  Tensor nll(*backend, DType::kF32, kRows), entropy(*backend, DType::kF32, kRows), argmax(*backend, DType::kI32, kRows);
  const auto work = [&] {
    backend->token_loss({.hidden = hidden.ref(),
                         .weight = weight.ref(),
                         .targets = targets.ref().as<int32_t>(),
                         .nll = ref::data_of<float>(nll),
                         .entropy = ref::data_of<float>(entropy),
                         .argmax = ref::data_of<int32_t>(argmax),
                         .rows = kRows,
                         .width = kWidth,
                         .vocab = kVocab});
  };
  const auto eager_after = [&](uint32_t seed) {
    const Tensor other = ref::upload_activations(*backend, ref::random_values(kRows * kWidth, seed));
    backend->copy(hidden.ref().data, other.ref().data, hidden.bytes());
    work();
    return ref::download_array<float>(nll);
  };
  eager_after(2);
  const size_t in_use = backend->bytes_in_use();
  {
    const auto recording = backend->record(work);
    for (const uint32_t seed : {3, 4}) {
      const std::vector<float> want = eager_after(seed);
      nll.fill_zero();
      recording->run();
      EXPECT_EQ(ref::download_array<float>(nll), want);
    }
  }
  EXPECT_EQ(backend->bytes_in_use(), in_use);
}

}  // namespace
}  // namespace kv
