#!/usr/bin/env bash
# The whole study on one machine: study.sh RANKS [SPEC...], from the repository's folder; as study.slurm, by mpirun.
# Without specs weights are trained first: those that are there stay, and what needs texts or a model that are not here
# says so (exit code 2).
set -euo pipefail
ranks=${1:?"study.sh: expected the number of GPUs"}
shift
share() {
  mpirun -n "$ranks" --bind-to none build-cuda/kvlab "$1" "$2" --device cuda --out "results/$(basename "$2" .yaml)-cuda"
}
specs=("$@")
if ((${#specs[@]} == 0)); then
  mapfile -t specs < <(experiments/cluster/specs.sh)
  mapfile -t trainings < <(experiments/cluster/specs.sh trainings)
  for spec in "${trainings[@]}"; do share train "$spec" || echo "$spec: not trained, exit code $?" >&2; done
fi
failed=0
for spec in "${specs[@]}"; do
  share run "$spec" || {
    echo "$spec: exit code $?" >&2
    failed=1
  }
done
exit $failed
