#!/usr/bin/env bash
# Made by genrm from experiment qwen3-4b-genrm-split, plan sha256:ac39ce14e62ba6d4a815df2114cd77260d39072f03fa1b9233b3079c969cee47. Do not edit.
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
  --genrm-model-path /models/Qwen3-VL-30B-A3B-Instruct \
  --genrm-num-gpus-per-engine 4 \
  --genrm-engine-config '{"max_context_len":10240,"context_length":10240}' \
  --genrm-sampling-config '{"temperature":0.1,"top_p":1.0,"top_k":-1,"max_response_len":1024}' \
  --rm-type dapo-genrm \
  --reward-key score \
  --hf-checkpoint /models/Qwen3-4B
