#!/usr/bin/env bash
# One script on several hosts. Run this on each of them:
#   HOSTS=2 FIRST=10.0.0.1 code/scripts/launch/torchrun.sh code/scripts/train.py DATA RUN
# Change HOSTS, FIRST (an address of the first host that all can reach, the
# same on all), DATA and RUN (folders that all hosts see under these names).
# RANKS is how many a host starts: if not given, one for each GPU, or where
# there is none, for each core. A second job on these hosts needs another PORT. In
# a container (the second line is for InfiniBand and RoCE):
#   docker run --rm --gpus all --network host --ipc host -v /shared:/shared \
#     --device /dev/infiniband --ulimit memlock=-1 -e HOSTS -e FIRST IMAGE …
set -euo pipefail
: "${HOSTS:?how many hosts}" "${FIRST:?address of the first host}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# A restarted rank must not find old addresses.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Seconds from SIGTERM to SIGKILL: time for a save.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${GRACE:-60}"
# Hosts may not know each other by name, and on Debian a host takes its own for
# 127.0.1.1. So torchrun gets the address from which this one reaches FIRST, gloo
# gets the card that has it, and the host that has FIRST is where all meet.
read -r own first card < <("${PYTHON:-python3}" -c '
import contextlib, fcntl, socket, struct, sys

def way(to):
    kind, *_, there = socket.getaddrinfo(to, 1, type=socket.SOCK_DGRAM)[0]
    out = socket.socket(kind, socket.SOCK_DGRAM)
    out.connect(there)  # of a datagram: nothing is sent
    return out.getsockname()[0], there[0]

own, first = way(sys.argv[1])
address, card = own, ""
with contextlib.suppress(OSError):  # there is no network
    if own.startswith("127."):
        address = way("192.0.2.1")[0]  # by the default route
for _, name in socket.if_nameindex():
    with contextlib.suppress(OSError):  # it has no IPv4 address
        request = struct.pack("256s", name.encode())
        found = fcntl.ioctl(socket.socket(), 0x8915, request)  # SIOCGIFADDR
        if socket.inet_ntoa(found[20:24]) == address:
            card = name
print(own, first, card)' "$FIRST")
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
