#!/usr/bin/env bash
# Made by genrm from experiment gym-openai, plan sha256:46b0152271d79bd2fe0bd00041daed451b1551a5c0e4f26152dbed5c0e34899d. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${JUDGE_API_KEY:?JUDGE_API_KEY holds a secret and is not set}"

# Environment.
export JUDGE_API_KEY="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
