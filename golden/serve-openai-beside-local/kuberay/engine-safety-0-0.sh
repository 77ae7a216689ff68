#!/usr/bin/env bash
# Made by genrm from experiment serve-openai-beside-local, plan sha256:65feadfa97f1dcd27862cc12a4da110ac93c51da07d76fc7993276df738347dc. Do not edit.
# Set GENRM_PORT_VLLM: a free port for vllm.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Judge safety, replica 0, node rank 0.
set -euo pipefail

# Environment.
export CUDA_VISIBLE_DEVICES=0
export VLLM_PORT="${GENRM_PORT_VLLM:?set me: a free port for vllm}"

exec vllm serve /models/safety-judge \
  --served-model-name=safety \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --tensor-parallel-size=1 \
  --max-model-len=8192 \
  --gpu-memory-utilization=0.9
