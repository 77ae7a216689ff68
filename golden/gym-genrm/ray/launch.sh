#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:48b68d501fc354bed5c0381b5e724f67c988f39db771b6e15031b8d6d17c9fe0. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
