#!/usr/bin/env bash
# The whole study on one machine: study.sh RANKS [SPEC...], from the repository's folder; as study.slurm, by mpirun.
set -euo pipefail
ranks=${1:?"study.sh: expected the number of GPUs"}
shift
specs=("$@")
((${#specs[@]})) || mapfile -t specs < <(experiments/cluster/specs.sh)
failed=0
for spec in "${specs[@]}"; do
  mpirun -n "$ranks" --bind-to none build-cuda/kvlab run "$spec" --device cuda \
    --out "results/$(basename "$spec" .yaml)-cuda" || {
    echo "$spec: exit code $?" >&2
    failed=1
  }
done
exit $failed
