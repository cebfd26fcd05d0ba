#include "kernels/add.h"

#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Add);

std::vector<float> sums(Backend& backend, const std::vector<float>& first, const std::vector<float>& second) {
  const Tensor a = ref::upload_activations(backend, first), b = ref::upload_activations(backend, second);
  const auto count = std::ssize(first);
  Tensor output(backend, backend.activation_type(), count + 8);
  backend.add({.first = a.ref(), .second = b.ref(), .output = output.ref(), .count = count});
  std::vector<float> got = ref::download_activations(output);
  ref::expect_untouched(got, count, count + 8);
  got.resize(static_cast<size_t>(count));
  return got;
}

TEST_P(Add, IsTheSumOfBothRoundedOnce) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t count : {0, 1, 7, 8, 9, 2047, 2048, 2049, 16383, 16384, 16385, 40000}) {
    const std::vector<float> first = ref::rounded(*backend, ref::random_values(count, 1));
    const std::vector<float> second = ref::rounded(*backend, ref::random_values(count, 2));
    const std::vector<float> got = sums(*backend, first, second);
    std::vector<float> want(first.size());
    // Exactly: a double holds the sum of two floats well enough to round to the float that their own addition gives.
    for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(double{first[i]} + double{second[i]});
    EXPECT_EQ(got, ref::rounded(*backend, want)) << count << " values";
  }
}

TEST_P(Add, MayWriteOverWhatItReads) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> first = ref::random_values(1003, 1), second = ref::random_values(1003, 2);
  const std::vector<float> apart = sums(*backend, first, second);
  Tensor a = ref::upload_activations(*backend, first), b = ref::upload_activations(*backend, second);
  backend->add({.first = a.ref(), .second = b.ref(), .output = b.ref(), .count = 1003});
  EXPECT_EQ(ref::download_activations(b), apart);
  b = ref::upload_activations(*backend, second);
  backend->add({.first = a.ref(), .second = b.ref(), .output = a.ref(), .count = 1003});
  EXPECT_EQ(ref::download_activations(a), apart);
}

TEST_P(Add, StartsAtAnyElement) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> first = ref::random_values(100, 1), second = ref::random_values(100, 2);
  const std::vector<float> apart = sums(*backend, first, second);
  const Tensor a = ref::upload_activations(*backend, first), b = ref::upload_activations(*backend, second);
  Tensor output(*backend, backend->activation_type(), 100);
  backend->add({.first = a.at(3), .second = b.at(3), .output = output.at(3), .count = 90});
  const std::vector<float> got = ref::download_activations(output);
  ref::expect_untouched(got, 0, 3);
  ref::expect_untouched(got, 93, 100);
  EXPECT_EQ(ref::slice(got, 3, 90), ref::slice(apart, 3, 90));
}

TEST(AddThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const auto with = [&](int threads) {
    const ref::Threads limit(threads);
    return sums(*backend, ref::random_values(40000, 1), ref::random_values(40000, 2));
  };
  EXPECT_EQ(with(1), with(2));
}

}  // namespace
}  // namespace kv
