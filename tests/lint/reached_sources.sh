#!/usr/bin/env bash
# reached_sources.sh BASE [h]: the sources of the working tree that the changes since the commit BASE reach, one a line:
# those that changed, and those that include one that did, through whatever header. With h the headers, in their place.
# Every one where the change is to what all of them are checked with: the checks, the flags, the lint preset's own. Only
# #include "..." from the root is followed (and kernels/every_op.h, which CMake writes), so a library's header that
# changes reaches nothing.
set -euo pipefail
base=$1
ending=${2:-cpp}
folders='kernels sim policies harness tests'

sources() {
  # shellcheck disable=SC2086 # a list
  find $folders -name "*.$ending" | LC_ALL=C sort
}

changed=$(git diff --name-only --relative "$base" -- && git ls-files --others --exclude-standard)
if grep -qE '^(\.clang-tidy|cmake/flags\.cmake|CMakePresets\.json)$' <<< "$changed"; then
  sources
  exit
fi
# shellcheck disable=SC2086
{
  sed 's/^/changed /' <<< "$changed"
  grep -rHoE --include='*.h' --include='*.cpp' '^#include "[^"]+"' $folders | sed -E 's/^([^:]+):#include "(.+)"$/\1 \2/' || true
  find kernels -maxdepth 1 -name '*.h' | sed 's|^|kernels/every_op.h |'
} | awk '
  $1 == "changed" { if (NF == 2) reached[$2] = 1; next }
  { includer[$2] = includer[$2] " " $1 }
  END {
    for (file in reached) queue[++last] = file
    for (at = 1; at <= last; ++at) {
      count = split(includer[queue[at]], files, " ")
      for (i = 1; i <= count; ++i) {
        if (files[i] in reached) continue
        reached[files[i]] = 1
        queue[++last] = files[i]
      }
    }
    for (at = 1; at <= last; ++at) print queue[at]
  }' | LC_ALL=C sort | comm -12 - <(sources)
