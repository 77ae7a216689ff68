#!/usr/bin/env bash
# Made by genrm from experiment serve-sglang-two-nodes, plan sha256:f6217176b41da89c48b11afc42fa4fe4a53e1805fab8c69190a1311839229301. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
