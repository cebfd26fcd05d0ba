#include "tests/support/this_build.h"

namespace kv::ref {

bool is_debug_build() {
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

bool is_sanitized() {
#ifdef KV_SANITIZED
  return true;
#else
  return false;
#endif
}

}  // namespace kv::ref
