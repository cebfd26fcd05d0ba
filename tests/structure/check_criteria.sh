#!/bin/sh
# check_criteria.sh ROOT: fails, naming spec and commit, where a criterion is said to be fixed at a commit that has no such
# spec, nor what it is like, nor the one whose name its own begins with: there its criterion was not. Exits with 77, for
# "skipped", where the history is not here.
set -eu
cd "$1"
if ! git rev-parse --git-dir > /dev/null 2>&1 || [ "$(git rev-parse --is-shallow-repository)" != false ]; then
  echo "skipped: no history"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# has COMMIT SPEC: the commit's specs are listed once.
has() {
  [ -f "$work/$1" ] || git ls-tree --name-only "$1" experiments/ > "$work/$1" 2> /dev/null || return 1
  grep -qx "$2" "$work/$1"
}

# is_there COMMIT SPEC
is_there() {
  like=$2
  while [ -n "$like" ]; do
    if has "$1" "$like"; then return; fi
    like=$(sed -n 's|^like: *|experiments/|p' "$like")
  done
  name=${2%.yaml}
  while [ "$name" != "${name%-*}" ]; do
    name=${name%-*}
    if has "$1" "$name.yaml"; then return; fi
  done
  return 1
}

bad=0
for spec in experiments/*.yaml; do
  for commit in $(sed -n 's/^ *commit: *//p' "$spec" | sort -u); do
    is_there "$commit" "$spec" && continue
    echo "$spec: no criterion was fixed at commit $commit, which has no such spec"
    bad=1
  done
done
exit $bad
