#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:9e51fdbe92ae8945e27aabc0e483594c261a57942381c15cf7b56e82ea579e68. Do not edit.
# Set GENRM_PORT_VLLM: a free port for vllm.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Judge safety, replica 0, node rank 0.
set -euo pipefail

# Environment.
export CUDA_VISIBLE_DEVICES=4,5,6,7
export VLLM_PORT="${GENRM_PORT_VLLM:?set me: a free port for vllm}"

exec vllm serve /models/safety-judge \
  --served-model-name=safety \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --tensor-parallel-size=4 \
  --max-model-len=8192 \
  --gpu-memory-utilization=0.9 \
  --no-enforce-eager
