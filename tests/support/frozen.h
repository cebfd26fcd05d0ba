#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kv::ref {

// What a policy with default options keeps on the trace of every_policy_test.cpp, one hash a protocol that it serves
// (decode, one-shot): a change is a change of results. Stated by a static object in the policy's own test:
//   const Frozen frozen{"h2o", {0xb616d81877ce0c98, 0x89071aff04d9dcaf}};
struct Frozen {
  Frozen(std::string policy, std::vector<uint64_t> hashes);
};

// Null where no test states them.
const std::vector<uint64_t>* frozen_hashes(std::string_view policy);

}  // namespace kv::ref
