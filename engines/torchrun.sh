#!/usr/bin/env bash
# One script on several hosts. Run this on each of them:
#   HOSTS=2 FIRST=10.0.0.1 engines/torchrun.sh code/scripts/fsdp.py /shared/run
# RANKS is how many a host starts: if not given, one for each GPU, or where there is none, for
# each core.
set -euo pipefail
: "${HOSTS:?how many hosts}" "${FIRST:?address of the first host}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a restarted rank must not find old addresses
exec "${PYTHON:-python3}" -m torch.distributed.run \
  --nnodes "$HOSTS" --nproc-per-node "${RANKS:-auto}" \
  --rdzv-backend c10d --rdzv-endpoint "$FIRST:${PORT:-29400}" --rdzv-id "${JOB:-book}" \
  --max-restarts "${RESTARTS:-3}" -- "$@"
