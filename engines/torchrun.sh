#!/usr/bin/env bash
# One script on several hosts. Run this on each of them:
#   HOSTS=2 FIRST=10.0.0.1 engines/torchrun.sh code/scripts/train.py DATA RUN
# Change HOSTS, FIRST (an address of the first host that all can reach, the
# same on all), DATA and RUN (folders that all hosts see under these names).
# RANKS is how many a host starts: if not given, one for each GPU, or where
# there is none, for each core. In a container:
#   docker run --rm --gpus all --network host --ipc host \
#     -v /shared:/shared -e HOSTS -e FIRST IMAGE …
set -euo pipefail
: "${HOSTS:?how many hosts}" "${FIRST:?address of the first host}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# A restarted rank must not find old addresses.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Seconds from SIGTERM to SIGKILL: time for a save.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${GRACE:-60}"
# Hosts may not know each other by name. So torchrun gets the address from which
# this one reaches FIRST; and the host that has FIRST is where all meet.
read -r own first < <("${PYTHON:-python3}" -c '
import socket, sys
kind, *_, there = socket.getaddrinfo(sys.argv[1], 1, type=socket.SOCK_DGRAM)[0]
way = socket.socket(kind, socket.SOCK_DGRAM)
way.connect(there)  # of a datagram: nothing is sent
print(way.getsockname()[0], there[0])' "$FIRST")
PORT="${PORT:-29400}"
meet=(--rdzv-endpoint "$FIRST:$PORT" --rdzv-conf is_host=0 --local-addr "$own")
if [[ "$first" == "$own" || "$first" == 127.* ]]; then
  meet=(--rdzv-endpoint "localhost:$PORT" --local-addr "$FIRST")
fi
exec "${PYTHON:-python3}" -m torch.distributed.run \
  --nnodes "$HOSTS" --nproc-per-node "${RANKS:-auto}" \
  --rdzv-backend c10d --rdzv-id "${JOB:-book}" "${meet[@]}" \
  --max-restarts "${RESTARTS:-3}" -- "$@"
