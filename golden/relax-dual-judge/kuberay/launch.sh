#!/usr/bin/env bash
# Made by genrm from experiment qwen3-4b-dual-judge, plan sha256:5a1dcaaa232c7690573733ac4d4586186c95c8e3e0d2bf0763eae7ca2a2375a8. Do not edit.
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
  --genrm-instances '{"quality":{"model_path":"/models/quality-judge","num_gpus":2,"num_gpus_per_engine":2,"sampling_config":{"temperature":0.1,"max_response_len":64}},"safety":{"model_path":"/models/safety-judge","num_gpus":2,"num_gpus_per_engine":2,"sampling_config":{"max_response_len":32,"chat_template_kwargs":{"enable_thinking":false}}}}' \
  --custom-rm-path examples.generate_reward_model.reward_dual_genrm_quality_safety.reward_func \
  --reward-key score \
  --hf-checkpoint /models/Qwen3-4B \
  --advantage-estimator grpo \
  --use-kl-loss \
  --lr 1e-6
