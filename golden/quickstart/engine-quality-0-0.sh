#!/usr/bin/env bash
# Made by genrm from experiment quickstart, plan sha256:8031f6e339f28cc66580cf5a78ec768db5a843efd41d31242421fc4b7da7288b. Do not edit.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Judge quality, replica 0, node rank 0.
set -euo pipefail
genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"

exec genrm sim \
  --route-key=quality \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --script="${genrm_here}"/sim-quality.json
