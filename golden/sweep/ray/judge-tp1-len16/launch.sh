#!/usr/bin/env bash
# Made by genrm from experiment judge-tp1-len16, plan sha256:ed837620428532d1ef6629ad8b3b66319a87b215eec7b57afc8e4627222c8b38. Do not edit.
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
  --genrm-sampling-config '{"temperature":0.1,"chat_template_kwargs":{"enable_thinking":false},"max_response_len":16}' \
  --rm-type dapo-genrm \
  --reward-key score \
  --genrm-num-gpus-per-engine 1 \
  --hf-checkpoint /models/Qwen3-4B
