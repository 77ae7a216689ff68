#!/usr/bin/env bash
# Made by genrm from experiment qwen35-35b-genrm-397b-defer, plan sha256:c8734abbd7b789110d1706e86540dcac1bcc1c074de69ceb99da7b9cb1f6f72c. Do not edit.
set -euo pipefail

# Environment.
export PYTHONUNBUFFERED=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
export RAY_OVERRIDE_JOB_RUNTIME_ENV=1
export OMP_NUM_THREADS=24
export MKL_NUM_THREADS=24
export OPENBLAS_NUM_THREADS=24
export NCCL_NVLS_ENABLE=1
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256
export NVSHMEM_DISABLE_NCCL=1
export SGLANG_HEALTH_CHECK_TIMEOUT=180
export NVTE_USE_CUTLASS_GROUPED_GEMM=0
export NVTE_CUTLASS_GROUPED_GEMM_WARN_FALLBACK=1
export INDEXER_ROPE_NEOX_STYLE=0
export TORCH_DIST_INIT_BARRIER=1
export TORCH_NCCL_BLOCKING_WAIT=0
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export TORCH_DISTRIBUTED_DEFAULT_TIMEOUT=3600

exec python3 -m relax.entrypoints.train \
  --colocate \
  --resource '{"actor":[1,16],"rollout":[1,16],"genrm":[1,16]}' \
  --rollout-num-gpus 16 \
  --max-staleness 0 \
  --genrm-model-path /exp/Qwen3.5-397B-A17B-FP8/ \
  --genrm-num-gpus 16 \
  --genrm-num-gpus-per-engine 8 \
  --genrm-engine-config '{"context_length":10240,"mem_fraction_static":0.85,"dp_size":8,"ep_size":8,"enable_dp_attention":true,"moe_dense_tp_size":1,"enable_dp_lm_head":true,"disable_cuda_graph":true,"server_concurrency":1024,"watchdog_timeout":3600}' \
  --genrm-sampling-config '{"temperature":0.1,"top_p":1.0,"top_k":-1,"max_response_len":32,"chat_template_kwargs":{"enable_thinking":false}}' \
  --rollout-num-gpus-per-engine 2 \
  --sglang-mem-fraction-static 0.7 \
  --rm-type dummy \
  --defer-reward-to-post-process \
  --custom-reward-post-process-path examples.generate_reward_model.post_process_genrm_swap.custom_reward_post_process \
  --reward-key score \
  --num-rollout 1000 \
  --disable-bias-linear \
  --qk-layernorm \
  --group-query-attention \
  --num-attention-heads 16 \
  --num-query-groups 2 \
  --kv-channels 256 \
  --num-layers 40 \
  --hidden-size 2048 \
  --ffn-hidden-size 512 \
  --normalization RMSNorm \
  --apply-layernorm-1p \
  --position-embedding-type rope \
  --norm-epsilon 1e-6 \
  --rotary-percent 0.25 \
  --swiglu \
  --untie-embeddings-and-output-weights \
  --vocab-size 248320 \
  --rotary-base 10000000 \
  --moe-ffn-hidden-size 512 \
  --moe-shared-expert-intermediate-size 512 \
  --moe-router-score-function softmax \
  --moe-router-topk 8 \
  --moe-layer-freq '[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]' \
  --num-experts 256 \
  --moe-grouped-gemm \
  --moe-token-drop-policy probs \
  --moe-router-dtype fp32 \
  --moe-permute-fusion \
  --attention-output-gate \
  --moe-shared-expert-gate \
  --no-rope-fusion \
  --moe-router-load-balancing-type none \
  --moe-aux-loss-coeff 0.0 \
  --hf-checkpoint /exp/Qwen3.5-35B-A3B/ \
  --ref-load /exp/Qwen3.5-35B-A3B/ \
  --megatron-to-hf-mode bridge \
  --warm-hf-checkpoint-page-cache \
  --save /exp/Qwen3.5-35B-A3B_mcore_16xgpu_genrm397B_defer/ \
  --save-interval 1000 \
  --max-actor-ckpt-to-keep 1 \
  --prompt-data /exp/dapo-math-17k/dapo-math-17k.jsonl \
  --input-key prompt \
  --label-key label \
  --apply-chat-template \
  --rollout-shuffle \
  --rollout-batch-size 16 \
  --n-samples-per-prompt 8 \
  --rollout-max-response-len 8192 \
  --rollout-temperature 1 \
  --global-batch-size 128 \
  --use-fault-tolerance \
  --balance-data \
  --sglang-server-concurrency 32 \
  --skip-eval-before-train \
  --log-passrate \
  --eval-interval 20 \
  --eval-prompt-data aime /exp/aime-2024/aime-2024.jsonl \
  --n-samples-per-eval-prompt 8 \
  --eval-max-response-len 8192 \
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
  --optimizer-cpu-offload \
  --overlap-cpu-optimizer-d2h-h2d \
  --use-precision-aware-optimizer \
  --tensor-model-parallel-size 4 \
  --sequence-parallel \
  --pipeline-model-parallel-size 2 \
  --context-parallel-size 1 \
  --expert-model-parallel-size 8 \
  --expert-tensor-parallel-size 1 \
  --recompute-granularity full \
  --recompute-method uniform \
  --recompute-num-layers 1 \
  --use-dynamic-batch-size \
  --max-tokens-per-gpu 20480 \
  --moe-flex-dispatcher-backend deepep \
  --moe-token-dispatcher-type flex \
  --attention-dropout 0.0 \
  --hidden-dropout 0.0 \
  --accumulate-allreduce-grads-in-fp32 \
  --attention-softmax-in-fp32 \
  --attention-backend flash \
  --use-clearml \
  --use-metrics-service \
  --tb-project-name Relax/dev/dapo-math-genrm \
  --tb-experiment-name qwen35-35B-A3B-GRPO-GenRM397B-defer-gpu16 \
  --use-gated-attention
