#!/usr/bin/env bash
# Made by genrm from experiment gym-vllm, plan sha256:d8fc405aa722711fbb6311a3142ae11abcc084cd328c17e1bc418ae67927dd6a. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml \
  '++judge.responses_api_models.vllm_model.uses_reasoning_parser=false'
