#!/usr/bin/env bash
# Made by genrm from experiment serve-sglang-two-nodes, plan sha256:27480b449caf27f134d06de0b0bd7950efdfaa0e61832e519a70f9b1ff1f0120. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
