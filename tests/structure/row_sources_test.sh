#!/bin/sh
# row_sources_test.sh SOURCE_DIR: the hash of the sources that rows depend on changes with each of them, and with nothing
# else; that of the CPU does not change with the CUDA kernels.
set -eu
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/tree"
cd "$root/tree"
mkdir -p kernels/cpu kernels/cuda sim/io policies harness/report harness/cli harness/spec harness/metrics docs tests
for file in kernels/attend.h kernels/cpu/attend.cpp kernels/cuda/attend.cu sim/io/xz.cpp policies/h2o.cpp \
  harness/metrics/loss.cpp harness/spec/grid.cpp harness/spec/table_reader.cpp harness/rows.cpp harness/notice.cpp \
  harness/report/svg.cpp harness/cli/run.cpp docs/spec.md tests/a_test.cpp; do
  echo "$file" > "$file"
done

cat > "$root/print.cmake" << END
include($1/cmake/row_sources.cmake)
hash_row_sources($root/tree ALL CPU)
message("\${ALL} \${CPU}")
END
hashes() { cmake -P "$root/print.cmake" 2>&1; }

before=$(hashes)
case $before in
  [0-9a-f]*\ [0-9a-f]*) ;;
  *) echo "no two hashes: $before"; exit 1 ;;
esac

# expect FILE ALL CPU: whether each hash is the same after a change of FILE.
expect() {
  echo change >> "$1"
  after=$(hashes)
  all=other cpu=other
  [ "${before% *}" = "${after% *}" ] && all=same
  [ "${before#* }" = "${after#* }" ] && cpu=same
  [ "$all $cpu" = "$2 $3" ] || { echo "$1: $all $cpu, expected $2 $3"; exit 1; }
  before=$after
}

for file in kernels/attend.h kernels/cpu/attend.cpp sim/io/xz.cpp policies/h2o.cpp harness/metrics/loss.cpp \
  harness/spec/grid.cpp harness/rows.cpp sim/added.cpp harness/added.h; do
  expect "$file" other other
done
expect kernels/cuda/attend.cu other same
for file in harness/spec/table_reader.cpp harness/notice.cpp harness/report/svg.cpp harness/cli/run.cpp docs/spec.md \
  tests/a_test.cpp README.md; do
  expect "$file" same same
done
