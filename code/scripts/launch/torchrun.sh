#!/usr/bin/env bash
# Start a script on several hosts. Run this command on each of them:
#   HOSTS=2 FIRST=10.0.0.1 code/scripts/launch/torchrun.sh code/scripts/train.py DATA RUN
# Change:
#   HOSTS      number of hosts
#   FIRST      address of the first host that all hosts can reach; the same on all hosts
#   DATA, RUN  folders that all hosts see under these names
#   RANKS      ranks per host (default: one per GPU, or one per core if there are no GPUs)
#   PORT       port of the rendezvous on FIRST (default: 29400); each job needs its own
# If you copy this file, copy own_address.py into the same folder.
# In a container (the second line is for InfiniBand and RoCE):
#   docker run --rm --gpus all --network host --ipc host -v /shared:/shared \
#     --device /dev/infiniband --ulimit memlock=-1 -e HOSTS -e FIRST IMAGE …
set -euo pipefail
: "${HOSTS:?how many hosts}" "${FIRST:?address of the first host}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Restarted ranks must not find the addresses of dead ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Time to save: seconds between SIGTERM and SIGKILL.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${GRACE:-60}"
# torchrun and gloo get the address at which other hosts can reach this one. The host whose own
# address is FIRST opens the rendezvous.
read -r own first card < <("${PYTHON:-python3}" "$(dirname "$0")/own_address.py" "$FIRST")
[[ -z "$card" ]] || export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$card}"
PORT="${PORT:-29400}"
meet=(--rdzv-endpoint "$FIRST:$PORT" --rdzv-conf is_host=0 --local-addr "$own")
if [[ "$first" == "$own" || "$first" == 127.* ]]; then
  meet=(--rdzv-endpoint "localhost:$PORT" --local-addr "$FIRST")
fi
exec "${PYTHON:-python3}" -m torch.distributed.run \
  --nnodes "$HOSTS" --nproc-per-node "${RANKS:-${SLURM_GPUS_ON_NODE:-auto}}" \
  --rdzv-backend c10d --rdzv-id "${JOB:-book}" "${meet[@]}" \
  --max-restarts "${RESTARTS:-3}" -- "$@"
