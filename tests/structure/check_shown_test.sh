#!/bin/sh
# The check accepts an index of tracked files and names a picture or page that only lies there.
set -eu
check=$(cd "$(dirname "$0")" && pwd)/check_shown.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/results/a"
cd "$root"
touch results/a/table.md results/a/loss.svg results/a/other.svg
echo '| [a](a/table.md) | <a href="a/table.md"><img src="a/loss.svg" width="260"></a> |' > results/README.md

"$check" "$root" # no repository: what is here counts
git init -q . && git add results/README.md results/a/table.md
git -c user.name=a -c user.email=a@b commit -qm a

must_say() {
  ! "$check" "$root" > output || { echo "accepted: $1"; exit 1; }
  [ "$(grep -c . output)" = 1 ] && grep -q "shows $1," output || { cat output; exit 1; }
}
must_say a/loss.svg
git add results/a/loss.svg
"$check" "$root"
echo '[b](a/other.svg)' >> results/README.md
must_say a/other.svg
