#!/usr/bin/env bash
# Made by genrm from experiment serve-two-vllm, plan sha256:cd8b36216b2ff79d00c1785f567cbc6e12ae05d7f0284ca5e2646ec32c447097. Do not edit.
# Set GENRM_PORT_VLLM: a free port for vllm.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Judge quality, replica 0, node rank 0.
set -euo pipefail

# Environment.
export CUDA_VISIBLE_DEVICES=0,1
export VLLM_PORT="${GENRM_PORT_VLLM:?set me: a free port for vllm}"

exec vllm serve /models/quality-judge \
  --served-model-name=quality \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --tensor-parallel-size=2 \
  --max-model-len=16384 \
  --gpu-memory-utilization=0.9 \
  --enable-prefix-caching
