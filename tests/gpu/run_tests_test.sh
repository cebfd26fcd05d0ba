#!/usr/bin/env bash
# run_tests.sh on a made-up machine with a GPU and four cores, so two shards: a test binary that says what GoogleTest
# would, and a compute-sanitizer that runs what it is given.
set -euo pipefail
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/run_tests.sh
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

program() {
  cat > "$root/$1"
  chmod +x "$root/$1"
}

program nvidia-smi <<< 'echo "Made-up GPU, 1.0"'
program nproc <<< 'echo "${OMP_NUM_THREADS:-4}"'
program compute-sanitizer <<'END'
#!/usr/bin/env bash
echo "$2" >> "$CALLS"
[[ -z ${RACE-} ]] || echo "========= Error: Race reported between Read access at $RACE+0x10 in x.cu:1"
while [[ $1 != */tests ]]; do shift; done
SANITIZED=1 "$@"
END
# One case of /cpu and three of /cuda, of which one is not of a single op. Case HANG never ends, under a tool only where
# SANITIZED_HANG is set.
program tests <<'END'
#!/usr/bin/env bash
cases=(Add/cpu Add/cuda Copy/cuda Move/cuda)
for option; do
  [[ $option != --gtest_filter=*cuda* ]] || cases=(Add/cuda Copy/cuda Move/cuda)
  [[ $option != --gtest_filter=Ops/*cuda* ]] || cases=(Add/cuda Copy/cuda)
  if [[ $option == --gtest_list_tests ]]; then
    printf 'Running main()\nOps.  # TypeParam = none\n'
    printf '  %s  # GetParam() = "x"\n' "${cases[@]}"
    echo '  DISABLED_Old/cuda'
    exit
  fi
done
hang=${HANG-}
[[ -z ${SANITIZED-} ]] || hang=${SANITIZED_HANG-}
for ((i = GTEST_SHARD_INDEX; i < ${#cases[@]}; i += GTEST_TOTAL_SHARDS)); do
  echo "[ RUN      ] Ops.${cases[i]}"
  [[ ${cases[i]} != "$hang" ]] || exec sleep 60
  if [[ ${cases[i]} == "${SKIP-}" ]]; then
    echo "[  SKIPPED ] Ops.${cases[i]} (1 ms)"
  elif [[ ${cases[i]} == "${FAIL-}" ]]; then
    printf 'the reason\n[  FAILED  ] Ops.%s, where GetParam() = "x" (1 ms)\n' "${cases[i]}"
    bad=1
  else
    echo "[       OK ] Ops.${cases[i]} (1 ms)"
  fi
done
exit ${bad-0}
END
export PATH=$root:$PATH CALLS=$root/calls

# expect RESULT LINE... -- [VARIABLE=VALUE...] ARGUMENT...: the exit code, and lines of the output.
expect() {
  local result=$1 lines=() variables=() got=0
  shift
  while [[ $1 != -- ]]; do lines+=("$1") && shift; done
  shift
  while [[ ${1-} == [A-Z]*=* ]]; do variables+=("$1") && shift; done
  rm -f "$CALLS"
  env "${variables[@]}" "$script" "$root/tests" "$@" > "$root/output" 2>&1 || got=$?
  ((got == result)) || { echo "exit code $got, expected $result: $*" && cat "$root/output" && exit 1; }
  for line in "${lines[@]}"; do
    grep -qE "^$line\$" "$root/output" || { echo "no line '$line': $*" && cat "$root/output" && exit 1; }
  done
}

expect 0 'dev: tests: 4 tests in [0-9]+ s: 4 passed \(3 of them on the GPU\), 0 skipped, 0 failed, 0 without a result' \
  'dev: test --gpu: all passed' --
[[ ! -e $CALLS ]] || { echo 'a sanitizer ran unasked' && exit 1; }

# Options in any order.
expect 0 'dev: memcheck: 3 tests .*' -- --gtest_shuffle --sanitize=memcheck --limit=5
[[ $(sort -u "$CALLS") == memcheck ]] || { echo "not memcheck alone: $(< "$CALLS")" && exit 1; }
expect 0 'dev: initcheck: 3 tests .*' 'dev: racecheck: 2 tests .*' -- --limit=5 --sanitize --gtest_shuffle
expect 1 "dev: test --gpu: unknown option '--sanitise', expected .*" -- --sanitise
expect 1 "dev: test --gpu: --sanitize: unknown tool 'lint', expected .*" -- --sanitize=memcheck,lint
expect 1 'dev: test --gpu: --limit=soon: expected whole seconds, at least 1' -- --limit=soon

expect 1 'the reason' '.* 3 passed .* 1 failed, 0 without a result' 'dev: test --gpu: FAILED' -- FAIL=Copy/cuda

expect 1 '---- racecheck: races' '.* at attend_decode.*' 'dev: test --gpu: FAILED' -- RACE=attend_decode --sanitize=racecheck
expect 0 "dev: racecheck: 2 reports of cuBLASLt's own kernels" 'dev: test --gpu: all passed' \
  -- RACE=nvjet_sm90 --sanitize=racecheck

expect 0 '.* 3 passed .* 1 skipped, .*' '  skipped: Ops.Move/cuda' 'dev: test --gpu: all passed' -- SKIP=Move/cuda

# A case that hangs ends its shard: neither it nor what would have come after it in its shard has a result.
expect 1 '---- tests, shard 0 of 2 was ended at its limit of 3 s' '---- tests: no result of' '  Ops.Add/cpu' \
  '  Ops.Copy/cuda' '.* 2 passed .* 0 failed, 2 without a result' 'dev: test --gpu: FAILED' -- HANG=Add/cpu --limit=3
expect 1 'dev: tests: .* 4 passed .*' '---- initcheck: no result of' '  Ops.Move/cuda' '.* 2 passed .* 1 without a result' \
  -- SANITIZED_HANG=Move/cuda --limit=3 --sanitize=initcheck
