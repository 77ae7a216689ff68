#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:c345ae34d4df88680390df508659781c7fad820297208b9ba4c5c62cccf81aab. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
