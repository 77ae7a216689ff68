#!/usr/bin/env bash
# Made by genrm from experiment gym-multinode, plan sha256:02e06ca7a58aec188b6b7fe103060ffdeb57808b1ba3420fda921605da150392. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${HF_TOKEN:?HF_TOKEN holds a secret and is not set}"

# Environment.
export HF_TOKEN="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
