#!/bin/sh
# The check accepts what the folders allow, and rejects each kind of violation on its own.
set -eu
check=$(dirname "$0")/check_structure.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/kernels/cpu" "$root/kernels/cuda" "$root/sim/io" "$root/sim/model" "$root/sim/cache" "$root/sim/policy" \
  "$root/sim/tasks" "$root/sim/source" "$root/sim/replay" "$root/policies" "$root/harness" "$root/tests"

write() { printf '%s\n' "$2" > "$root/$1"; }

accept() {
  write "$1" "$2"
  if ! "$check" "$root"; then
    echo "rejected in $1: $2"
    exit 1
  fi
}

# must_say FILE TEXT PATTERN
must_say() {
  write "$1" "$2"
  if "$check" "$root" > "$root/output"; then
    echo "accepted in $1: $2"
    exit 1
  fi
  grep -q "$3" "$root/output"
  rm "$root/$1"
}

reject() { must_say "$1" "$2" "^$1:1: #include "; }

# reject_condition FILE TEXT [LINE]
reject_condition() { must_say "$1" "$2" "^$1:${3-1}: .*: only kernels/cuda/ may ask the preprocessor for CUDA"; }

accept kernels/cpu/a.cpp '#include "kernels/a.h"'
accept kernels/b.cpp '#include <Eigen/Dense>'
accept sim/a.h '#include "kernels/a.h"'
accept policies/a.cpp '#include "sim/a.h"'
accept harness/a.cpp '  #  include "sim/a.h"'
accept harness/b.cpp '// #include "policies/a.h"'
accept kernels/cuda/a.cu '#include <cuda_runtime.h>'
accept kernels/cuda/b.cu '#include <cstdint>'
accept kernels/cuda/c.cu '#include "kernels/a.h"'

reject kernels/x.h '#include "sim/a.h"'
reject kernels/cpu/x.cpp '#include "harness/a.h"'
reject sim/x.h '#include "policies/a.h"'
reject sim/x.cpp '#include <harness/a.h>'
reject policies/x.cpp '#include "harness/a.h"'
reject harness/x.cpp '#include "policies/a.h"'
reject harness/x.h '  #  include "policies/a.h"'
reject sim/x.h '#include "tests/ref/a.h"'
reject sim/x.h '#include "a.h"'
reject sim/x.h '#include "../kernels/a.h"'
reject kernels/cuda/x.cu '#include <Eigen/Core>'
reject kernels/cuda/x.cu '#include <fmt/format.h>'
reject kernels/cuda/x.cu '#include "sim/a.h"'

accept harness/types.h 'struct Grid {'
accept sim/model/types.h 'struct Grid;'
accept kernels/cuda/types.h 'struct Grid {'
must_say sim/x.h 'class Grid {' '^sim/x.h:1: Grid: already defined in harness/types.h:1'
must_say sim/x.h 'enum class Grid : uint8_t { kNone };' '^sim/x.h:1: Grid: already defined in harness/types.h:1'
rm "$root/harness/types.h"

accept kernels/a.cpp '#ifdef NDEBUG'
accept kernels/cuda/d.cuh '#if __CUDA_ARCH__ >= 900'
accept sim/c.cpp 'if (device == "cuda") return;'
accept tests/a.cpp '#include "kernels/cuda/a.h"'

reject_condition kernels/x.h '#ifdef __CUDACC__'
reject_condition kernels/x.h '#if defined(__CUDA_ARCH__)'
reject_condition sim/x.cpp '#ifdef KVLAB_CUDA'
reject_condition policies/x.cpp '  #  ifndef KVLAB_CUDA'
reject_condition harness/x.cpp '#if __has_include(<cuda_runtime.h>)'
reject_condition harness/x.cpp '#elif KVLAB_GPU'
reject_condition harness/x.cpp '#if defined(NDEBUG) && \
  defined(KVLAB_CUDA)' 2
reject_condition tests/x.cpp '#ifdef __NVCC__'

# Inside sim/ arrows have one direction, too.
accept sim/model/a.h '#include "sim/io/a.h"'
accept sim/policy/a.h '#include "sim/cache/a.h"'
accept sim/source/a.h '#include "sim/tasks/a.h"'
accept sim/replay/a.cpp '#include "sim/source/a.h"'

reject sim/io/x.h '#include "sim/model/a.h"'
reject sim/cache/x.h '#include "sim/model/a.h"'
reject sim/model/x.cpp '#include "sim/cache/a.h"'
reject sim/cache/x.cpp '#include "sim/policy/a.h"'
reject sim/policy/x.h '#include "sim/replay/a.h"'
reject sim/policy/x.h '#include "sim/tasks/a.h"'
reject sim/tasks/x.cpp '#include "sim/source/a.h"'
reject sim/source/x.h '#include "sim/replay/a.h"'

# No file reaches itself; a header and its source are one.
accept sim/model/b.cpp '#include "sim/model/b.h"'
accept sim/model/c.h '#include "sim/model/d.h"'
accept sim/model/d.h '#include "sim/model/e.h"'
must_say sim/model/e.cpp '#include "sim/model/c.h"' 'closes a cycle: sim/model/[cde] -> .* -> .* -> '
accept kernels/e.h '#include "kernels/f.h"'
must_say kernels/f.cpp '#include "kernels/e.h"' ': closes a cycle: '
accept harness/e.h '#include "harness/f.h"'
must_say harness/f.cpp '#include "harness/e.h"' ': closes a cycle: '
