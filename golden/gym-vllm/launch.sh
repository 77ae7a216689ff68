#!/usr/bin/env bash
# Made by genrm from experiment gym-vllm, plan sha256:ba409ba5ac966e008f98280153127026f13d08237afce1fa85992127e48695ef. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml \
  '++judge.responses_api_models.vllm_model.uses_reasoning_parser=false'
