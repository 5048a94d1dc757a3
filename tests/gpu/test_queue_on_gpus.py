"""What a queue's thread does on a GPU: after the caller's work there, and before what follows."""

import pytest
import torch

from distributed.launching import launch
from distributed.ring_group import RingGroup
from distributed.runtime.queue import Queue

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="one GPU wanted, none found")

LONG = 200_000_000  # clock cycles: a tenth of a second


def test_work_beside_the_caller_is_ordered_on_the_gpu():
    device = torch.device("cuda", GPUS - 1)  # a thread begins on device 0
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
        queue, x, y = Queue(), torch.zeros(1000, device=device), torch.zeros(1000, device=device)
        where = []

        def work():
            where.append(torch.cuda.current_device())
            torch.cuda._sleep(LONG)
            y.copy_(x)

        torch.cuda._sleep(LONG)
        x.fill_(7)
        wait = queue.submit(work)
        wait()
        z = y * 2
        assert z.tolist() == [14] * 1000
        assert where == [device.index]


@pytest.mark.skipif(GPUS < 2, reason="two GPUs wanted: gloo sends no messages between them")
def test_messages_beside_the_caller_are_of_what_the_gpu_has_written():
    def reduce(group):
        rings = RingGroup(group)
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(100_000, device=group.device)
            found = []
            for step in range(3):
                torch.cuda._sleep(LONG)
                x.fill_(group.rank + step)
                found.append((rings.all_reduce(x, async_op=True).wait() * 2)[-1].item())
        return found

    n = GPUS
    expected = [2.0 * (n * (n - 1) / 2 + n * step) for step in range(3)]
    assert launch(reduce, ranks=n, device="cuda") == [expected] * n
