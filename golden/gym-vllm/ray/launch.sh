#!/usr/bin/env bash
# Made by genrm from experiment gym-vllm, plan sha256:1188a6988f370af89eb0d7e594fb7adc7a34f3717cd2b05dfdbaa8b65f381e88. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml \
  '++judge.responses_api_models.vllm_model.uses_reasoning_parser=false'
