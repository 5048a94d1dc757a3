"""Which address and network card this host has on the way to another host; for torchrun.sh.

    python own_address.py FIRST        prints, for example: 10.0.0.2 10.0.0.1 eth0

It prints this host's own address, FIRST's address, and the card that has the own address. A host's
name isn't enough: other hosts may not know it, and Debian lets it resolve to 127.0.1.1.
"""

import contextlib
import fcntl
import socket
import struct
import sys

SIOCGIFADDR = 0x8915  # of ioctl: the IPv4 address of a network card, on Linux


def route(to: str) -> tuple[str, str]:
    """This host's address on the route to a host, and that host's address."""
    kind, *_, there = socket.getaddrinfo(to, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(there)  # connecting a datagram socket sends nothing
        return probe.getsockname()[0], there[0]


def card_with(address: str) -> str:
    """Name of the network card that has this IPv4 address, or an empty string."""
    with socket.socket() as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # this card has no IPv4 address
                request = struct.pack("256s", name.encode())
                found = fcntl.ioctl(probe, SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


def main(first: str) -> None:
    own, there = route(first)
    of_card = own
    if own.startswith("127."):  # this host is FIRST: take the card of the default route
        with contextlib.suppress(OSError):  # there is no network
            of_card, _ = route("192.0.2.1")
    print(own, there, card_with(of_card))


if __name__ == "__main__":
    main(sys.argv[1])
