#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:ead4ed07a6f5e45c001af1a12e51c5e422047a5a6bae615240959322a6074b10. Do not edit.
# Set GENRM_PORT_VLLM: a free port for vllm.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Judge quality, replica 1, node rank 0.
set -euo pipefail

# Environment.
export CUDA_VISIBLE_DEVICES=2,3
export VLLM_PORT="${GENRM_PORT_VLLM:?set me: a free port for vllm}"

exec vllm serve /models/quality-judge \
  --served-model-name=quality \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --tensor-parallel-size=2 \
  --max-model-len=16384 \
  --gpu-memory-utilization=0.9 \
  --enable-prefix-caching
