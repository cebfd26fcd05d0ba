#include "kernels/check.h"

#include <cstdio>
#include <cstdlib>

namespace kv {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: internal error: %s does not hold\n", file, line, condition);
  std::abort();
}

}  // namespace kv
