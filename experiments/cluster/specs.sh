#!/usr/bin/env bash
# Every spec that `kvlab run` takes: trainings and profiles, which others read, have commands of their own.
set -euo pipefail
grep -LE '^protocol: (train|profile)$|^benchmarks:' experiments/*.yaml
