#!/usr/bin/env bash
# Made by genrm from experiment quickstart, plan sha256:1288b8ccb542c85a660f9c02d9076dcb5d760da086b441a4b5f96135596eb194. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
