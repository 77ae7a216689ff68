#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:e8e5ed30d410512ef308a06413242ee00241e87ba8dcb5a8cea5a1dbc7f2b14d. Do not edit.
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
