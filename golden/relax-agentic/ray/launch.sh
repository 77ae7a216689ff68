#!/usr/bin/env bash
# Made by genrm from experiment agent-three-judges, plan sha256:656d4d84f4257937119fc29c6138d0c4172d888230f2560b1314e3284f16c3e5. Do not edit.
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
  --resource '{"actor":[1,16],"rollout":[1,8],"genrm":[1,8]}' \
  --genrm-engine-config '{"context_length":16384}' \
  --genrm-sampling-config '{"temperature":0.1,"max_response_len":64,"chat_template_kwargs":{"enable_thinking":false}}' \
  --genrm-instances '{"planner_judge":{"model_path":"/models/Qwen3-8B","num_gpus":2,"num_gpus_per_engine":2},"tool_call_judge":{"model_path":"/models/Qwen3-4B","num_gpus":2,"num_gpus_per_engine":1},"final_answer_judge":{"model_path":"/models/Qwen3-32B","num_gpus":4,"num_gpus_per_engine":4,"sampling_config":{"temperature":0.1,"max_response_len":2048}}}' \
  --custom-rm-path rewards.agentic.reward_func \
  --reward-key score \
  --hf-checkpoint /models/Qwen3-8B \
  --rollout-max-response-len 8192
