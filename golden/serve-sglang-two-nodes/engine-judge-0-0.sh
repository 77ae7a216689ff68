#!/usr/bin/env bash
# Made by genrm from experiment serve-sglang-two-nodes, plan sha256:a94f938d3882dc1ed553a126147b379d814776704b03f1c028842aa0b6cf127c. Do not edit.
# Set GENRM_HOST_0: address of node 0 of this process.
# Set GENRM_PORT_HTTP: a free port for http.
# Set GENRM_PORT_NCCL: a free port for nccl.
# Set GENRM_PORT_DIST_INIT: a free port for dist_init.
# Judge judge, replica 0, node rank 0.
set -euo pipefail

# Environment.
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7

exec python3 -m sglang.launch_server \
  --model-path=/models/Qwen3.5-397B-A17B \
  --served-model-name=judge \
  --host="${GENRM_HOST_0:?set me: address of node 0 of this process}" \
  --port="${GENRM_PORT_HTTP:?set me: a free port for http}" \
  --nccl-port="${GENRM_PORT_NCCL:?set me: a free port for nccl}" \
  --tp-size=16 \
  --nnodes=2 \
  --node-rank=0 \
  --dist-init-addr="${GENRM_HOST_0:?set me: address of node 0 of this process}":"${GENRM_PORT_DIST_INIT:?set me: a free port for dist_init}" \
  --ep-size=16 \
  --context-length=32768 \
  --mem-fraction-static=0.85 \
  --trust-remote-code \
  --enable-metrics \
  --watchdog-timeout=1800
