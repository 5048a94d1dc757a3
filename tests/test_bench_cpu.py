"""Processor time of collectives: what is printed, and that it is time of all a rank's threads."""

import threading
import time

import pytest
from bench.cpu import WAYS, main, used_by


def test_all_threads_of_a_rank_count_and_waiting_does_not():
    def spin_until(end: float) -> None:
        while time.thread_time() < end:
            pass

    def in_a_thread() -> None:
        thread = threading.Thread(target=spin_until, args=[0.05])
        thread.start()
        thread.join()

    spun = used_by(in_a_thread, 2)
    assert spun.user + spun.kernel > 0.04
    slept = used_by(lambda: time.sleep(0.02), 3)
    assert slept.sleeps >= 1
    assert slept.user + slept.kernel < slept.wall


@pytest.mark.slow
def test_a_row_for_each_way_with_the_messages_of_its_formula(capsys):
    main(["4KB"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " ms " in line]
    assert [row[1] for row in rows] == list(WAYS)
    assert [row[-1] for row in rows[1:]] == ["6", "4"]
