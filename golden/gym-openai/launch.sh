#!/usr/bin/env bash
# Made by genrm from experiment gym-openai, plan sha256:6de7c1bd61cac165e212fcbef8a627d5a52eed2ead0ee088aaa94ac52e8008fa. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Secrets, by reference.
genrm_secret_1="${JUDGE_API_KEY:?JUDGE_API_KEY holds a secret and is not set}"

# Environment.
export JUDGE_API_KEY="${genrm_secret_1}"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
