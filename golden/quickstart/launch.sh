#!/usr/bin/env bash
# Made by genrm from experiment quickstart, plan sha256:c984480710b5ce7d661a70c1b8200c09ae5716b56097c50bd263b1644a4835df. Do not edit.
# Set GENRM_UPSTREAMS: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

# Environment.
export GENRM_UPSTREAMS="${GENRM_UPSTREAMS:?set me: addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica}"

exec genrm gateway \
  --config="${genrm_here}"/gateway.json
