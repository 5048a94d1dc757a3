"""The table of collectives where there are GPUs: `make test-gpu`."""

import re

import pytest
import torch

from distributed.instruments.collective_times import OPS, main
from distributed.runtime.report import RankError

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nccl_and_our_messages_over_it_give_the_right_numbers(capsys, op, dtype):
    """`main` raises where a number is wrong."""
    names = [name for name in OPS[op] if name not in ("shared", "hierarchical")]
    main(op, "1MB", GPUS, ",".join(names), dtype, times=2, device="cuda")
    said = capsys.readouterr().out
    assert "· nccl · a GPU each\n" in said
    assert len(re.findall(r" ok$", said, re.M)) == len(names)


def test_shared_memory_is_refused_where_tensors_are_on_gpus():
    with pytest.raises(RankError, match="shared memory needs all ranks on one host"):
        main("all_reduce", "1MB", GPUS, "shared", device="cuda")
