#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:96b8a5b01028800d5863064f551d56d929e9d1def7144783e0f7b2d91b62a219. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
