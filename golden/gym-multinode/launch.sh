#!/usr/bin/env bash
# Made by genrm from experiment gym-multinode, plan sha256:98d224d032d51c28c272954da729ff07ef2735473f123cd660da6f4b7a5ffe82. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
