#include "kernels/backend.h"

#include <algorithm>

#include "tests/support/backends.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, BackendFacts);

// What a manifest must say of a GPU, and nothing where the host computes: it describes itself.
TEST_P(BackendFacts, NameTheAcceleratorItsDriverAndLibraries) {
  KV_BACKEND_OR_SKIP(backend);
  const Facts facts = backend->accelerator();
  if (backend->name() == "cpu") {
    EXPECT_TRUE(facts.empty());
    return;
  }
  ASSERT_FALSE(facts.empty());
  EXPECT_EQ(facts.front().first, "gpu");
  for (const char* name : {"cuda_driver", "cuda_runtime", "cublaslt"}) {
    const auto found = std::find_if(facts.begin(), facts.end(), [&](const auto& fact) { return fact.first == name; });
    ASSERT_NE(found, facts.end()) << name;
    EXPECT_NE(found->second.find_first_of("123456789"), std::string::npos) << name << " " << found->second;
  }
}

KV_OVER_BACKENDS(Ops, BackendMoments);

// Three moments of one order: what lies between the outer two is what lies between them and the middle one.
TEST_P(BackendMoments, TellTheSecondsBetweenThem) {
  KV_BACKEND_OR_SKIP(backend);
  Tensor memory(*backend, DType::kF32, 1 << 20);
  const auto before = backend->mark();
  for (int i = 0; i < 8; ++i) memory.fill_zero();
  const auto between = backend->mark();
  for (int i = 0; i < 8; ++i) memory.fill_zero();
  const auto after = backend->mark();
  EXPECT_GT(between->seconds_since(*before), 0);
  EXPECT_GT(after->seconds_since(*between), 0);
  const double parts = between->seconds_since(*before) + after->seconds_since(*between);
  EXPECT_NEAR(after->seconds_since(*before), parts, 2e-6);  // events of a GPU are read to half a microsecond each
}

KV_OVER_BACKENDS(Ops, BackendCopies);

// Of sizes about those of a GPU's staging, 2 MB a piece and eight of them, whose last piece may be a byte.
TEST_P(BackendCopies, BringBackWhatWasSent) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr size_t kPiece = size_t{2} << 20;
  uint8_t first = 0;
  for (const size_t bytes : {size_t{1}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece, 17 * kPiece + 5}) {
    std::vector<uint8_t> sent(bytes), got(bytes);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(first + i % 251);
    Tensor memory(*backend, DType::kU8, static_cast<int64_t>(bytes));
    memory.upload(sent.data(), bytes);
    memory.download(got.data(), bytes);
    EXPECT_TRUE(got == sent) << bytes;
    ++first;
  }
}

// Two at once, and later ones in memory that earlier ones came to, one of which nobody looked at.
TEST_P(BackendCopies, AskedForWithoutAWaitAreOfThatMoment) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t count : {1000, 3000, 2000}) {
    const std::vector<float> one = ref::random_values(count, 1), two = ref::random_values(count, 2);
    Tensor memory = ref::upload_array(*backend, one);
    const std::unique_ptr<Download> first = memory.begin_download();
    memory.upload(two.data(), memory.bytes());
    const std::unique_ptr<Download> second = memory.begin_download();
    memory.fill_zero();
    const std::unique_ptr<Download> unread = memory.begin_download();
    EXPECT_TRUE(std::ranges::equal(second->wait_for<float>(), two)) << count;
    EXPECT_TRUE(std::ranges::equal(first->wait_for<float>(), one)) << count;
  }
}

}  // namespace
}  // namespace kv
