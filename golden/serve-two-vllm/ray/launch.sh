#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:cfe15f12592d1c94edbf3a792f8c02739552f46c759c2dab88d236809e415acb. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
