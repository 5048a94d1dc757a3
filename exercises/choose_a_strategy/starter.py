from distributed.plan import as_text, plan
from playground.exercises.check import check


def choose(case):
    """The name of a strategy: "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3" or, with hosts, "HSDP".

    `case` has a name, parameters, a cluster, and the memory of each GPU in bytes. It must fit; of
    those that fit it must be the fastest; and of those within 1 % of it the simplest, in the order
    above. One row of 2048 tokens on each GPU, bf16 with Adam in fp32.

        a small model on one host       1 billion parameters,  8 GPUs of 80 GB, NVLink
        slow GPUs with fast links       6 billion parameters,  8 GPUs of 80 GB, NVLink
        fast GPUs with fast links       7 billion parameters,  8 GPUs of 80 GB, NVLink
        four single GPUs on Ethernet    3 billion parameters,  4 GPUs of 48 GB, a host each
        four hosts of sixteen          30 billion parameters, 64 GPUs of 80 GB, NVLink inside
    """
    raise NotImplementedError


check("choose_a_strategy", choose)
