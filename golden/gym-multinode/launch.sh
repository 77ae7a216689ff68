#!/usr/bin/env bash
# Made by genrm from experiment gym-multinode, plan sha256:6c943803dabae0baaa508fba6b9acad38878e0c09f527a9894a0bffbd9b71699. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${HF_TOKEN:?HF_TOKEN holds a secret and is not set}"

# Environment.
export HF_TOKEN="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
