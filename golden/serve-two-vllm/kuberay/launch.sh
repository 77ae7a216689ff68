#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:41e82a5c64742dbe73d5b1f7f29cab888fbec12c772c975fea4f2a0cf35c5665. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
