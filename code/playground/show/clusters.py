"""The clusters that the figures of several chapters draw: H100s, eight to a host."""

from distributed.cost import Cluster, Link

FAST = Cluster(1, 8, Link(5e-6, 450e9), Link(1e-5, 400e9), 400e12)  # a port for each GPU
SLOW = FAST._replace(between=Link(1e-5, 50e9))  # one port for a whole host
