#!/bin/sh
# check_docs_test.sh KVLAB: the check accepts a good page, and rejects each kind of violation on its own.
set -eu
check=$(dirname "$0")/check_docs.sh
kvlab=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/docs" "$root/sim"
echo '# A front door' > "$root/README.md"
touch "$root/sim/a.h"
printf '#!/bin/sh\necho "./dev build   makes the binary"\n' > "$root/dev"
chmod +x "$root/dev"

# accept TEXT: of docs/page.md
accept() {
  printf '%b\n' "$1" > "$root/docs/page.md"
  if ! "$check" "$root" "$kvlab"; then
    echo "rejected: $1"
    exit 1
  fi
}

# reject TEXT PATTERN
reject() {
  printf '%b\n' "$1" > "$root/docs/page.md"
  if "$check" "$root" "$kvlab" > "$root/output"; then
    echo "accepted: $1"
    exit 1
  fi
  grep -q "$2" "$root/output" || {
    echo "no '$2' about $1 in:"
    cat "$root/output"
    exit 1
  }
}

accept 'Names `sim/a.h`, `sim/*.h`, `sim/<name>.h`, [a link](../sim/a.h#part) and [the web](https://example.org/sim/b).'
accept 'kvlab compares; sim/b.h is no code. `./dev build`, `kvlab run SPEC`, `build/kvlab describe h2o`.'
accept '```cpp\n// policies/mine.cpp\n  .name = "mine",\n```\n`policies/mine.cpp` is what `kvlab describe mine` prints.'
accept '`sim/downloaded.gguf` lies in a folder that is there.'
accept '```yaml\n# Is it right?\nmodel: {random: tiny}\nprotocol: latency\npolicies: [full]\naxes: {context: 64}\n```'
accept '```yaml\npolicies: [no spec]\n```'
accept "$(printf '%0160d' 0 | sed 's/0/é/g')"

reject "$(printf '%0161d' 0)" '^docs/page.md:1: has more than 160 characters'
reject 'First line.\n`sim/b.h`' '^docs/page.md:2: names sim/b.h, which is not there'
reject '```sh\ncat sim/b.h\n```' '^docs/page.md:2: names sim/b.h, which is not there'
reject '`sim/models/downloaded.gguf`' '^docs/page.md:1: names sim/models, which is not there'
reject '[a link](sim/a.h)' '^docs/page.md:1: links sim/a.h, which is not there'
reject '`./dev fly`' '^docs/page.md:1: names ./dev fly, which is not there'
reject '`kvlab fly`' '^docs/page.md:1: names kvlab fly, which is not there'
reject '`kvlab describe h3o`' "^docs/page.md:1: kvlab describe h3o: .*'h3o'"
reject '```yaml\n# Is it right?\nmodle: {random: tiny}\n```' "^docs/page.md:2: kvlab validate: .*modle"

echo 'A page.' > "$root/docs/page.md"
yes 'A line.' | head -n 151 > "$root/README.md"
if "$check" "$root" "$kvlab" > "$root/output"; then
  echo "accepted: a README of 151 lines"
  exit 1
fi
grep -q '^README.md: 151 lines' "$root/output"
