#!/usr/bin/env bash
# run_tests.sh TESTS [--sanitize[=TOOL,...]] [--limit=SECONDS] [GOOGLETEST OPTION...]
# Runs TESTS, the kvlab_tests of a CUDA build, on a machine with a GPU. A CUDA case that cannot run there is a failure,
# but for those that want more memory than is free: FarPages and SlowLongestPrefill 20 GB, SlowLongPrefill 2,
# SlowNamedShapes up to 68. These take turns (tests/support/large_on_cuda.h), and the sanitizers leave them out.
# Needs neither a network nor a compiler. --sanitize: afterwards the CUDA cases once more under each of
# compute-sanitizer's tools (default: memcheck, racecheck and initcheck), but for the suites named *Slow*, which compare
# numbers over whole models or many draws and run no kernel that the small cases do not. racecheck takes the cases of
# single ops alone (Ops/): it is far slower than the others, and kills processes that run a whole model, without a
# finding. A --gtest_filter holds for them, too.
# --limit: after so many seconds (default 900) a shard of the tests, or of a tool, is ended: a kernel that hangs is a
# failure. Fails when any test fails, or none ran, or one has no result; those are named.
set -euo pipefail

die() {
  echo "dev: test --gpu: $*" >&2
  exit 1
}

tests=${1:?"run_tests.sh: expected the test binary"}
shift
tools=()
limit=900
options=(--gtest_color=no)
for argument; do
  case $argument in
    --sanitize) tools=(memcheck racecheck initcheck) ;;
    --sanitize=*) IFS=, read -ra tools <<< "${argument#*=}" ;;
    --limit=*) limit=${argument#*=} ;;
    --gtest_*) options+=("$argument") ;;
    *) die "unknown option '$argument', expected --sanitize[=TOOL,...], --limit=SECONDS or --gtest_*" ;;
  esac
  [[ $argument != --sanitize=* || ${#tools[@]} -gt 0 ]] || die "--sanitize=: expected a tool"
done
[[ $limit =~ ^[1-9][0-9]*$ ]] || die "--limit=$limit: expected whole seconds, at least 1"
for tool in "${tools[@]}"; do
  [[ $tool =~ ^(mem|race|init|sync)check$ ]] ||
    die "--sanitize: unknown tool '$tool', expected memcheck, racecheck, initcheck or synccheck"
done
if ((${#tools[@]})); then
  PATH=$PATH:/usr/local/cuda/bin
  command -v compute-sanitizer > /dev/null || die "no compute-sanitizer in the PATH or /usr/local/cuda/bin"
fi
[[ -x $tests ]] || die "no test binary $tests"
gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null) && [[ -n $gpus ]] ||
  die "no GPU here (nvidia-smi finds none)"
missing=$(ldd "$tests" | grep 'not found' || true)
[[ -z $missing ]] || die "$tests lacks $(awk '{printf sep $1; sep = ", "}' <<< "$missing"); is LD_LIBRARY_PATH set?"

shards=$((($(env -u OMP_NUM_THREADS nproc) + 1) / 2))  # nproc would take that variable for its answer
export KV_REQUIRE_CUDA=1 OMP_NUM_THREADS=2

# The output of each test that did not end well, the last one of a process that died among them.
failures() {
  awk '
    /^\[ RUN / { text = ""; open = 1 }
    open { text = text $0 "\n" }
    /^\[       OK |^\[  SKIPPED \].*\([0-9]+ ms\)$/ { open = 0 }
    /^\[  FAILED  \].*\([0-9]+ ms\)$/ { if (open) printf "%s", text; open = 0 }
    END { if (open) printf "%s(the process ended here)\n", text }' "$@"
}

count() {
  local pattern=$1
  shift
  cat "$@" | grep -cE "$pattern" || true
}

# Names of the cases that these options choose, one a line.
cases() {
  "$tests" "$@" --gtest_list_tests | awk '
    { sub(/ *#.*/, "") }
    /^[^ ].*\.$/ { suite = $0 }
    /^  / && (suite $1) !~ /(^|[.\/])DISABLED_/ { print suite $1 }' | sort
}

# The names of the cases that have a result in these logs.
ended() {
  sed -nE 's/^\[( +OK|  FAILED|  SKIPPED) +\] ([^ ,]+).* \([0-9]+ ms\)$/\2/p' "$@" | sort
}

# run NAME COMMAND... -- OPTION...: the tests that the options choose, in shards of one process each, two threads a
# shard, no more of them than there are tests; prints what failed, what has no result, and a summary.
run() {
  local name=$1 shard failed=0 pids=() start=$SECONDS command=() result shards=$shards chosen
  shift
  while [[ $1 != -- ]]; do
    command+=("$1")
    shift
  done
  shift
  chosen=$(cases "$@" | wc -l)
  ((chosen >= shards)) || shards=$((chosen > 0 ? chosen : 1))
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout --kill-after=10 "$limit" "${command[@]}" "$@" \
      > "$logs/$name.$shard" 2>&1 &
    pids+=($!)
  done
  for shard in "${!pids[@]}"; do
    result=0
    wait "${pids[$shard]}" || result=$?
    ((result)) || continue
    failed=1
    if ((result == 124 || (result == 137 && SECONDS - start >= limit))); then  # 137 says killed, by whomever
      echo "---- $name, shard $shard of $shards was ended at its limit of $limit s"
    else
      echo "---- $name, shard $shard of $shards ended with an error"
    fi
    failures "$logs/$name.$shard"
    grep -E '^=========' "$logs/$name.$shard" | head -40 || true  # compute-sanitizer's own lines
  done
  local ran passed skipped open
  open=$(comm -23 <(cases "$@") <(ended "$logs/$name".*))
  if [[ -n $open ]]; then
    failed=1
    echo "---- $name: no result of"
    sed 's/^/  /' <<< "$open"
  fi
  ran=$(count '^\[ RUN ' "$logs/$name".*)
  passed=$(count '^\[       OK ' "$logs/$name".*)
  skipped=$(count '^\[  SKIPPED \].*\([0-9]+ ms\)$' "$logs/$name".*)
  echo "dev: $name: $ran tests in $((SECONDS - start)) s: $passed passed" \
    "($(count '^\[       OK .*/cuda' "$logs/$name".*) of them on the GPU)," \
    "$skipped skipped, $(count '^\[  FAILED  \].*\([0-9]+ ms\)$' "$logs/$name".*) failed," \
    "$(grep -c . <<< "$open" || true) without a result"
  sed -nE 's/^\[  SKIPPED \] ([^ ,]+).* \([0-9]+ ms\)$/  skipped: \1/p' "$logs/$name".* | sort
  ((ran > skipped)) || { echo "dev: $name: nothing ran" && failed=1; }
  ((failed == 0)) || status=1
}

# The cases that a tool of compute-sanitizer gets: of those that the options choose, what runs on the GPU, since a process
# that calls no CUDA is an error to it.
filter_under() {
  local given='' option left_out='*Slow*:*/cpu*'
  for option in "${options[@]}"; do [[ $option != --gtest_filter=* ]] || given=${option#*=}; done
  if [[ -z $given ]]; then
    [[ $1 == racecheck ]] && echo "Ops/*/cuda*-$left_out" || echo "*/cuda*-$left_out"
    return
  fi
  [[ $1 != racecheck ]] || left_out+=':Runs/*:Registered/*'
  [[ $given == *-* ]] && echo "$given:$left_out" || echo "$given-$left_out"
}

# cuBLASLt's kernels (nvjet) wait for their bulk copies in a way that racecheck takes for races. Told to leave them out,
# it makes them fail.
judge_races() {
  local races ours
  races=$(grep -h 'Race reported' "$logs"/racecheck.* || true)
  ours=$(grep -v ' at nvjet_' <<< "$races" | grep . || true)
  [[ -z $races ]] || echo "dev: racecheck: $(grep -c ' at nvjet_' <<< "$races" || true) reports of cuBLASLt's own kernels"
  [[ -n $ours ]] || return 0
  echo "---- racecheck: races" && head -40 <<< "$ours"
  status=1
}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0
echo "dev: $gpus (driver)"
run tests "$tests" -- "${options[@]}"
for tool in "${tools[@]}"; do
  checks=(compute-sanitizer --tool "$tool")
  [[ $tool == racecheck ]] || checks+=(--error-exitcode 9)
  run "$tool" "${checks[@]}" "$tests" -- "${options[@]}" --gtest_filter="$(filter_under "$tool")"
  [[ $tool != racecheck ]] || judge_races
done
if ((status)); then echo "dev: test --gpu: FAILED"; else echo "dev: test --gpu: all passed"; fi
exit $status
