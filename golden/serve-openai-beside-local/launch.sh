#!/usr/bin/env bash
# Made by genrm from experiment serve-openai-beside-local, plan sha256:e1af9a5c77ad50cdd3ea8a3f53c102c4c4710ac7f5692ad6984b55bc1d55079a. Do not edit.
# Set GENRM_UPSTREAMS: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Environment.
export GENRM_UPSTREAMS="${GENRM_UPSTREAMS:?set me: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica}"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
