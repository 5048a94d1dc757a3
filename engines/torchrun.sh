#!/usr/bin/env bash
# One module of the book on several hosts. Run this on each of them:
#   HOSTS=2 FIRST=10.0.0.1 RANKS=8 engines/torchrun.sh code/distributed/hsdp.py --batch 512
set -euo pipefail
: "${HOSTS:?how many hosts}" "${FIRST:?address of the first host}" "${RANKS:?ranks on each host: its GPUs}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a restarted rank must not find old addresses
exec "${PYTHON:-python3}" -m torch.distributed.run --nnodes "$HOSTS" --nproc-per-node "$RANKS" \
  --rdzv-backend c10d --rdzv-endpoint "$FIRST:${PORT:-29400}" --rdzv-id "${JOB:-book}" \
  --max-restarts "${RESTARTS:-3}" -- "$@"
