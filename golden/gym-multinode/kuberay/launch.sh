#!/usr/bin/env bash
# Made by genrm from experiment gym-multinode, plan sha256:1a8a4b4c1443f9cf924d27dac332883fbae990a1c9df40c4fe106cc9f4db730b. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${HF_TOKEN:?HF_TOKEN holds a secret and is not set}"

# Environment.
export HF_TOKEN="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
