#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:341d704bea7fe0f4ff5d78b598702ef6c22d2750238a65c6ff6e6a77a355a78e. Do not edit.
# Set GENRM_UPSTREAMS: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Environment.
export GENRM_UPSTREAMS="${GENRM_UPSTREAMS:?set me: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica}"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
