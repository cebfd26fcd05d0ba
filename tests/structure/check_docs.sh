#!/bin/sh
# check_docs.sh ROOT [KVLAB]: fails, naming file and line, where README.md is longer than a front door, or where it or a
# page of docs/
#   - has a line of more than 160 characters,
#   - links or names in code a path of the repository that is not there (but for a file whose text is a code block of
#     these pages, with "// PATH" as first line, and for a .gguf file, of which the folder has to be there),
#   - names a command of ./dev, or a verb of the binary KVLAB, that is not there, or describes what that does not know
#     (but for a policy that a code block registers),
#   - has a spec, a yaml block that begins with its question, that KVLAB finds wrong.
# Without KVLAB only the first three are looked at. Code is what stands in blocks or, on one line, in backticks.
set -eu
cd "$1"
kvlab=${2-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() {
  echo "$1"
  bad=1
}

# read_page PAGE: writes its code and links, as "LINE TEXT".
read_page() {
  awk '/^ *```/ { block = !block; next } block { print FNR, $0; next }
    { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) print FNR, part[i] }' "$1" > "$work/code"
  awk '/^ *```/ { block = !block } block { next }
    { while (match($0, /\]\([^)]*\)/)) {
        print FNR, substr($0, RSTART + 2, RLENGTH - 3)
        $0 = substr($0, RSTART + RLENGTH) } }' "$1" > "$work/links"
}

check_lengths() {
  # Characters, not bytes.
  LC_ALL=C.UTF-8 grep -nE '^.{161}' "$1" | cut -d: -f1 > "$work/long" || true
  while read -r line; do complain "$1:$line: has more than 160 characters"; done < "$work/long"
}

check_paths() {
  while read -r line target; do
    case $target in
      *://* | \#*) ;;
      *) [ -e "$(dirname "$1")/${target%%#*}" ] || complain "$1:$line: links $target, which is not there" ;;
    esac
  done < "$work/links"
  awk '{ for (i = 2; i <= NF; ++i) {
      gsub(/[",:;()]+$|^[("]+/, "", $i)
      if ($i ~ /^(cmake|docs|experiments|harness|kernels|policies|results|sim|tests)\/[A-Za-z0-9_.\/*-]*$/) print $1, $i } }' \
    "$work/code" > "$work/paths"
  while read -r line path; do
    grep -qxF "$path" "$work/held" && continue
    case $path in *.gguf) path=$(dirname "$path") ;; esac  # downloaded into a folder of the repository
    # shellcheck disable=SC2086 # a pattern
    ls -d $path > /dev/null 2>&1 || complain "$1:$line: names $path, which is not there"
  done < "$work/paths"
}

check_dev() {
  sed -nE 's/^([0-9]+) (.*[^a-zA-Z])?\.\/dev ([a-z]+).*$/\1 \3/p' "$work/code" > "$work/commands"
  while read -r line command; do
    grep -q "^\./dev $command\b" "$work/dev_help" || [ "$command" = help ] ||
      complain "$1:$line: names ./dev $command, which is not there"
  done < "$work/commands"
}

check_verbs() {
  sed -nE 's/^([0-9]+) (.*[ \/])?kvlab ([a-z]+)( [a-z0-9-]+)?.*$/\1 \3\4/p' "$work/code" > "$work/commands"
  while read -r line verb name; do
    if ! grep -qx "$verb" "$work/verbs"; then
      complain "$1:$line: names kvlab $verb, which is not there"
    elif [ "$verb" = describe ] && [ -n "$name" ] && ! grep -qxF -e "$name" "$work/registered"; then
      "$kvlab" describe "$name" > /dev/null 2> "$work/error" || complain "$1:$line: kvlab describe $name: $(cat "$work/error")"
    fi
  done < "$work/commands"
}

check_specs() {
  rm -f "$work"/specs/*.yaml
  awk -v folder="$work/specs" 'first { spec = /^# / ? FNR : 0; first = 0 }
    /^ *```/ { block = !block; first = block && /yaml/; spec = 0 }
    spec { print > (folder "/" spec ".yaml") }' "$1"
  for spec in "$work"/specs/*.yaml; do
    [ -e "$spec" ] || continue
    "$kvlab" validate "$spec" > "$work/error" 2>&1 ||
      complain "$1:$(basename "$spec" .yaml): kvlab validate: $(sed "s#$work/specs/##g" "$work/error")"
  done
}

lines=$(wc -l < README.md)
[ "$lines" -le 150 ] || complain "README.md: $lines lines, expected at most 150"
./dev help > "$work/dev_help"
# The files and policies that code blocks hold.
awk 'first { if ($1 == "//" && NF == 2) print $2; first = 0 } /^ *```/ { block = !block; first = block }' \
  README.md docs/*.md > "$work/held"
sed -n 's/^ *\.name = "\([a-z0-9-]*\)",$/\1/p' README.md docs/*.md > "$work/registered"
if [ -n "$kvlab" ]; then
  "$kvlab" --help | sed -n '/^Subcommands:/,/^$/p' | awk '{ print $1 }' > "$work/verbs"
  # What the specs of the pages name and the repository has not.
  mkdir "$work/specs"
  echo '{"context": "a", "question": "b", "answer_prefix": "c", "answers": ["d"], "max_new_tokens": 1}' > "$work/specs/my_ruler.jsonl"
  if grep -q '^trace: t.safetensors$' README.md docs/*.md; then
    "$kvlab" record --model experiments/models/reference --task reason --tokens 512 --out "$work/specs/t.safetensors" > /dev/null
  fi
fi
for page in README.md docs/*.md; do
  read_page "$page"
  check_lengths "$page"
  check_paths "$page"
  check_dev "$page"
  [ -n "$kvlab" ] || continue
  check_verbs "$page"
  check_specs "$page"
done
exit $bad
