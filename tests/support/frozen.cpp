#include "tests/support/frozen.h"

#include <functional>
#include <map>

#include "kernels/check.h"

namespace kv::ref {

namespace {

std::map<std::string, std::vector<uint64_t>, std::less<>>& registry() {
  static std::map<std::string, std::vector<uint64_t>, std::less<>> hashes;
  return hashes;
}

}  // namespace

Frozen::Frozen(std::string policy, std::vector<uint64_t> hashes) {
  KV_CHECK(registry().emplace(std::move(policy), std::move(hashes)).second);
}

const std::vector<uint64_t>* frozen_hashes(std::string_view policy) {
  const auto found = registry().find(policy);
  return found == registry().end() ? nullptr : &found->second;
}

}  // namespace kv::ref
