#!/usr/bin/env bash
# Made by genrm from experiment weekly, plan sha256:ed9695a46aebc103b62eb7d2708edd210924237dbc1838399d28990232df4965. Do not edit.
set -euo pipefail

# Environment.
export PYTHONUNBUFFERED=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONPATH=/shared/src/Relax:/shared/src/Megatron-LM
export RAY_OVERRIDE_JOB_RUNTIME_ENV=1
export OMP_NUM_THREADS=24
export MKL_NUM_THREADS=24
export OPENBLAS_NUM_THREADS=24
export NCCL_NVLS_ENABLE=1
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=32
export NVSHMEM_DISABLE_NCCL=1
export SGLANG_HEALTH_CHECK_TIMEOUT=180
export NVTE_USE_CUTLASS_GROUPED_GEMM=0
export NVTE_CUTLASS_GROUPED_GEMM_WARN_FALLBACK=1
export INDEXER_ROPE_NEOX_STYLE=0

cd -- /shared/src/Relax

exec python3 relax/entrypoints/train.py \
  --colocate \
  --resource '{"actor":[1,16],"rollout":[1,8],"genrm":[1,8]}' \
  --genrm-model-path /shared/models/Qwen3-32B \
  --genrm-num-gpus-per-engine 4 \
  --genrm-engine-config '{"context_length":8192}' \
  --genrm-sampling-config '{"temperature":0.1,"max_response_len":32,"chat_template_kwargs":{"enable_thinking":false}}' \
  --rm-type dapo-genrm \
  --reward-key score \
  --num-rollout 1000 \
  --no-enable-affinity \
  --hf-checkpoint /shared/models/Qwen3-8B
