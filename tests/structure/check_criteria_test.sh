#!/bin/sh
# check_criteria_test.sh: the check accepts criteria that their commits have, and names those that they have not.
set -eu
check=$(cd "$(dirname "$0")" && pwd)/check_criteria.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
git init -q .
commit() {
  git add . && git -c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm step && git rev-parse --short HEAD
}
mkdir experiments
echo '# None yet' > experiments/first.yaml
before=$(commit)
printf '# Is it?\nverdict:\n  - {item: a}\n' > experiments/table.yaml
fixed=$(commit)

# expect RC PATTERN SPEC TEXT
expect() {
  printf '%b\n' "$4" > "experiments/$3.yaml"
  rc=0
  "$check" "$root" > "$root/output" || rc=$?
  if [ "$rc" != "$1" ] || { [ -n "$2" ] && ! grep -q "$2" "$root/output"; }; then
    echo "$3: $rc, expected $1 and '$2':"
    cat "$root/output"
    exit 1
  fi
  rm "experiments/$3.yaml"
}

expect 0 '' table "verdict:\n  - item: a\n    commit: $fixed"
expect 0 '' table-own "verdict:\n  - item: a\n    commit: $fixed"
expect 0 '' other "like: table.yaml\nverdict:\n  - item: a\n    commit: $fixed"
expect 1 "^experiments/table.yaml: no criterion was fixed at commit $before" table "verdict:\n  - item: a\n    commit: $before"
expect 1 '^experiments/other.yaml: ' other "verdict:\n  - item: a\n    commit: $fixed"
expect 1 'at commit 0123456, ' table "verdict:\n  - item: a\n    commit: 0123456"
rm -rf .git
expect 77 '^skipped: ' table "verdict:\n  - item: a\n    commit: $fixed"
