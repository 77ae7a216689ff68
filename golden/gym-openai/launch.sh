#!/usr/bin/env bash
# Made by genrm from experiment gym-openai, plan sha256:989eb7462c7f765b9fd8fc448f54b789cba38168632903bbac10abef163388a8. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
