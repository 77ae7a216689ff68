#!/usr/bin/env bash
# Made by genrm from experiment judge-tp2-len64, plan sha256:8f813b4b2cf85771fd26ac80e8e77c8ad9e9d31c07867e7550ba0dcde1190f13. Do not edit.
set -euo pipefail

# Environment.
export PYTHONUNBUFFERED=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
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

exec python3 relax/entrypoints/train.py \
  --colocate \
  --resource '{"actor":[1,8],"rollout":[1,4],"genrm":[1,4]}' \
  --genrm-model-path /models/Qwen3-8B \
  --genrm-engine-config '{"context_length":4096}' \
  --genrm-sampling-config '{"temperature":0.1,"chat_template_kwargs":{"enable_thinking":false},"max_response_len":64}' \
  --rm-type dapo-genrm \
  --reward-key score \
  --genrm-num-gpus-per-engine 2 \
  --hf-checkpoint /models/Qwen3-4B
