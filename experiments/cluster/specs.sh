#!/usr/bin/env bash
# Every spec that `kvlab run` takes: trainings and profiles, which others read, have commands of their own.
set -euo pipefail

# What a spec says of that key, itself or by the one that it is like.
said_of() {
  local key=$1 spec=$2 own like
  own=$(sed -n "s/^$key: *//p" "$spec")
  like=$(sed -n 's/^like: *//p' "$spec")
  if [[ -n $own || -z $like ]]; then echo "$own"; else said_of "$key" "${spec%/*}/$like"; fi
}

for spec in experiments/*.yaml; do
  [[ -z $(said_of benchmarks "$spec") ]] || continue
  case $(said_of protocol "$spec") in
    train* | profile*) ;;
    *) echo "$spec" ;;
  esac
done
