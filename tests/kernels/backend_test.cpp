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

}  // namespace
}  // namespace kv
