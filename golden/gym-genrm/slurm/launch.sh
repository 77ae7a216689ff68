#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:ae10ca8275b57dbe00681a2a90dd6974a8305572cc227147685ecfd6552c165c. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
