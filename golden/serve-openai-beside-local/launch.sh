#!/usr/bin/env bash
# Made by genrm from experiment serve-openai-beside-local, plan sha256:5e3ab8509572ea17dbbc50d627a71fe3cb50f9b5b2dcd38da23c417444fc6f1a. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
