#include "harness/host_name.h"

#include <unistd.h>

#include <array>

namespace kv {

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

}  // namespace kv
