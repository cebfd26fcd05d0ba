#!/bin/sh
# The check accepts what the folders allow, and rejects each kind of violation on its own.
set -eu
check=$(dirname "$0")/check_structure.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/kernels/cpu" "$root/kernels/cuda" "$root/sim" "$root/policies" "$root/harness" "$root/tests"

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
