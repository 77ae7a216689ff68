#!/usr/bin/env bash
# Made by genrm from experiment gym-genrm, plan sha256:3787a9ab3901dd9155ae946f3dadef8606a509f368238f9de45365946c9ab36c. Do not edit.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec gym env start \
  --config "${genrm_here}"/gym.yaml
