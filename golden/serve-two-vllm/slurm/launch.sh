#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:0c9551b73637f0bf610f4c1d813e150678ddff933e9122e0944aca7dcaf221c8. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
