#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:5bf88da58c1b46e173c03229763cbc34edc298d796f3857b9f16dc983c7aeb46. Do not edit.
# Set GENRM_UPSTREAMS: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Environment.
export GENRM_UPSTREAMS="${GENRM_UPSTREAMS:?set me: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica}"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
