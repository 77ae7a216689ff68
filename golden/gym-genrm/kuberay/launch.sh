#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:e8ccbd2e77fefa3f902fe3e1151d8f3346dedbfa277bdd05c9e17e9c4bce4ee7. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
