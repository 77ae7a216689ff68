#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:3db259da65a4d2967d119c33ddc0dfbab8dbb2b2a6ecd947c35c0ee90cd063fd. Do not edit.
# Set GENRM_UPSTREAMS: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Environment.
export GENRM_UPSTREAMS="${GENRM_UPSTREAMS:?set me: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica}"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
