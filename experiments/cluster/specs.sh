#!/usr/bin/env bash
# specs.sh: every spec that `kvlab run` takes. specs.sh trainings: those of `kvlab train`, whose weights others read, second
# stages last. Profiles have a command of their own (`kvlab profile`).
set -euo pipefail

# What a spec says of that key, itself or by the one that it is like.
said_of() {
  local key=$1 spec=$2 own like
  own=$(sed -n "s/^$key: *//p" "$spec")
  like=$(sed -n 's/^like: *//p' "$spec")
  if [[ -n $own || -z $like ]]; then echo "$own"; else said_of "$key" "${spec%/*}/$like"; fi
}

later=()
for spec in experiments/*.yaml; do
  [[ -z $(said_of benchmarks "$spec") ]] || continue
  protocol=$(said_of protocol "$spec")
  case ${1:-runs},$protocol in
    runs,train* | runs,profile*) ;;
    runs,*) echo "$spec" ;;
    trainings,train*) if grep -q 'stage: reinforced' "$spec"; then later+=("$spec"); else echo "$spec"; fi ;;
  esac
done
for spec in "${later[@]}"; do echo "$spec"; done
