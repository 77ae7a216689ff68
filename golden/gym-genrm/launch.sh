#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:86d44e3cedc78cb2aa3840c34ac00421af1429b0e005f5c7999a3e15adfcf1f8. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
