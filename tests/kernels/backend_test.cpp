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

}  // namespace
}  // namespace kv
