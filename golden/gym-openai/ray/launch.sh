#!/usr/bin/env bash
# Made by genrm from experiment gym-openai, plan sha256:55954651440b19660a4b70d79cb87ab28fb8194f5bc743625049e27d5789c402. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${JUDGE_API_KEY:?JUDGE_API_KEY holds a secret and is not set}"

# Environment.
export JUDGE_API_KEY="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
