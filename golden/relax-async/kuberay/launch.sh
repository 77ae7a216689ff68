#!/usr/bin/env bash
# Made by genrm from experiment qwen3-4b-genrm-async, plan sha256:eb8b5d906dce811932733690ce10dc556cabfe335693794af5df3ea1aea5434f. Do not edit.
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
  --fully-async \
  --resource '{"actor":[1,2],"rollout":[1,3],"reference":[1,1],"actor_fwd":[1,1],"advantages":[1,0],"genrm":[1,1]}' \
  --max-staleness 2 \
  --genrm-model-path /exp/Qwen3-VL-30B-A3B-Instruct/ \
  --genrm-num-gpus-per-engine 1 \
  --genrm-engine-config '{"max_context_len":10240}' \
  --genrm-sampling-config '{"temperature":0.1,"top_p":1.0,"top_k":-1,"max_response_len":1024}' \
  --rollout-num-gpus-per-engine 1 \
  --sglang-mem-fraction-static 0.8 \
  --rm-type dapo-genrm \
  --reward-key score \
  --num-rollout 200 \
  --swiglu \
  --num-layers 36 \
  --hidden-size 2560 \
  --ffn-hidden-size 9728 \
  --num-attention-heads 32 \
  --group-query-attention \
  --num-query-groups 8 \
  --use-rotary-position-embeddings \
  --disable-bias-linear \
  --normalization RMSNorm \
  --norm-epsilon 1e-6 \
  --rotary-base 1000000 \
  --vocab-size 151936 \
  --kv-channels 128 \
  --qk-layernorm \
  --hf-checkpoint /exp/Qwen3-4B/ \
  --ref-load /exp/Qwen3-4B/ \
  --megatron-to-hf-mode bridge \
  --prompt-data /exp/dapo-math-17k/dapo-math-17k.jsonl \
  --input-key prompt \
  --label-key label \
  --apply-chat-template \
  --rollout-shuffle \
  --rollout-batch-size 32 \
  --n-samples-per-prompt 8 \
  --rollout-max-response-len 8192 \
  --rollout-temperature 1 \
  --global-batch-size 256 \
  --use-fault-tolerance \
  --skip-eval-before-train \
  --log-passrate \
  --eval-interval 20 \
  --eval-prompt-data aime /exp/aime-2024/aime-2024.jsonl \
  --n-samples-per-eval-prompt 8 \
  --eval-max-response-len 16384 \
  --eval-top-p 0.7 \
  --advantage-estimator grpo \
  --use-kl-loss \
  --kl-loss-coef 0.00 \
  --kl-loss-type low_var_kl \
  --entropy-coef 0.00 \
  --eps-clip 0.2 \
  --eps-clip-high 0.28 \
  --use-tis \
  --optimizer adam \
  --lr 1e-6 \
  --lr-decay-style constant \
  --weight-decay 0.1 \
  --adam-beta1 0.9 \
  --adam-beta2 0.98 \
  --tensor-model-parallel-size 2 \
  --sequence-parallel \
  --pipeline-model-parallel-size 1 \
  --context-parallel-size 1 \
  --expert-model-parallel-size 1 \
  --expert-tensor-parallel-size 1 \
  --recompute-granularity full \
  --recompute-method uniform \
  --recompute-num-layers 1 \
  --use-dynamic-batch-size \
  --max-tokens-per-gpu 9216 \
  --ref-actor-config '{"tensor_model_parallel_size":1,"max_tokens_per_gpu":16384,"sequence_parallel":false,"only_load_weight":true}' \
  --attention-dropout 0.0 \
  --hidden-dropout 0.0 \
  --accumulate-allreduce-grads-in-fp32 \
  --attention-softmax-in-fp32 \
  --attention-backend flash \
  --use-clearml \
  --use-metrics-service \
  --tb-project-name Relax/dev/genrm-async \
  --tb-experiment-name qwen3-4b-GRPO-GenRM-async-gpu8
