#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:8b08975355a70049ebcf32af58db36abc41acee72dfbb2323a9457fd9a4875ee. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
