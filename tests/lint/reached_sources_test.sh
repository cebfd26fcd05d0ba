#!/usr/bin/env bash
# The list holds what a change reaches, and nothing else.
set -euo pipefail
list=$(cd "$(dirname "$0")" && pwd)/reached_sources.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
unset GIT_DIR GIT_WORK_TREE
commit() {
  git add -A
  git -c user.name=t -c user.email=t@example.org -c commit.gpgsign=false commit -qm "$1"
}

# expect WHAT FILES...: since the first commit; the working tree is then as it was.
expect() {
  local what=$1 found
  shift
  found=$("$list" HEAD | tr '\n' ' ')
  [[ $found == "${*:+$* }" ]] || { echo "$what: expected '$*', got '$found'"; exit 1; }
  git checkout -q . && git clean -qfd
}

git init -q
mkdir -p kernels sim/io policies harness tests
echo '#include <vector>' > kernels/op.h
echo '#include "kernels/op.h"' > sim/io/low.h
printf '#include "sim/io/low.h"\n' > harness/top.h
echo '#include "harness/top.h"' > harness/top.cpp
echo '#include "sim/io/low.h"' > tests/low_test.cpp
echo '#include "kernels/every_op.h"' > kernels/backend.cpp
echo 'int other;' | tee sim/other.cpp > policies/h2o.cpp
mkdir cmake && touch README.md CMakeLists.txt CMakePresets.json .clang-tidy cmake/flags.cmake
commit first

expect 'nothing changed'
echo 'more' >> README.md && expect 'a page'
echo '// more' >> sim/other.cpp && expect 'a source' sim/other.cpp
echo '// more' >> sim/io/low.h && expect 'a header' harness/top.cpp tests/low_test.cpp
echo '// more' >> kernels/op.h && expect 'through headers' harness/top.cpp kernels/backend.cpp tests/low_test.cpp
echo '// more' > sim/new.cpp && expect 'a new source' sim/new.cpp
git mv sim/other.cpp sim/moved.cpp && expect 'a moved source' sim/moved.cpp
git reset -q --hard
git rm -q sim/other.cpp && expect 'a source that went'
git reset -q --hard
echo '# more' >> CMakeLists.txt && expect 'the build'
for file in cmake/flags.cmake CMakePresets.json .clang-tidy; do
  echo '# more' >> $file &&
    expect "$file" harness/top.cpp kernels/backend.cpp policies/h2o.cpp sim/other.cpp tests/low_test.cpp
done
echo '// more' >> kernels/op.h
[[ $("$list" HEAD h | tr '\n' ' ') == 'harness/top.h kernels/op.h sim/io/low.h ' ]] || { echo 'headers: not found'; exit 1; }
git checkout -q .
echo '// more' >> sim/other.cpp && commit second
[[ $("$list" HEAD^) == sim/other.cpp ]] || { echo 'a commit since the base: not found'; exit 1; }
echo 'reached_sources.sh lists what is reached'
