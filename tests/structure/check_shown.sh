#!/bin/sh
# check_shown.sh ROOT: fails, naming it, where the index results/README.md shows or links a file that git does not track.
# Plots are ignored (.gitignore) but for those that the index shows, which are added by hand (git add -f): one that is
# only here would be missing everywhere else. Without git, as in an archive, everything that is here counts.
set -eu
cd "$1/results"

tracked() { git ls-files --error-unmatch "$1" > /dev/null 2>&1; }
git rev-parse --verify -q HEAD > /dev/null 2>&1 || tracked() { [ -e "$1" ]; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  grep -o '<img src="[^"]*"' README.md | cut -d '"' -f 2
  grep -o '](\([^):]*\))' README.md | sed 's/^](//; s/)$//'
} | LC_ALL=C sort -u > "$work/shown"
bad=0
while read -r path; do
  tracked "$path" || { echo "results/README.md: shows $path, which git does not track (git add -f)"; bad=1; }
done < "$work/shown"
exit $bad
