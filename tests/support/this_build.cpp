#include "tests/support/this_build.h"

namespace kv::ref {

bool is_debug_build() {
#ifdef NDEBUG
  return false;
#else
  return true;
#endif
}

}  // namespace kv::ref
