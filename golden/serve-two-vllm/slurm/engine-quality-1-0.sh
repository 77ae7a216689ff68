#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:d7d2db9c41f001fe6afdefcb913c61a606188106e5bf3eac086c59ceba12711a. Do not edit.
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
