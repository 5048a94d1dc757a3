"""What is said of a trace: the bars add up, the peer agrees, and bad input is one line."""

import gzip
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from bench.reduce_traces import reduced
from hypothesis import given
from hypothesis import strategies as st

from distributed.read_trace.__main__ import main, read_file, work_of
from distributed.read_trace.breakdown import breakdown, odd_steps, whole
from distributed.read_trace.events import Events, TraceError
from distributed.read_trace.families import (
    ATTENTION,
    COMPILED,
    COPIES,
    ELEMENTS,
    NORMS,
    OTHER,
    PRODUCTS,
    family,
    short,
)
from distributed.read_trace.families import COMMUNICATION as MESSAGE
from distributed.read_trace.intervals import both, length, minus, union, within
from distributed.read_trace.kernels import by_family
from distributed.read_trace.messages import called, matched
from distributed.read_trace.recordings import one_for_each_rank
from distributed.read_trace.rules import PAGES
from distributed.read_trace.summary import as_text
from distributed.read_trace.verdict import StepWork, judge

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "book/_static/traces"
PEER = json.loads((ROOT / "bench/recorded/traces.json").read_text())


# --- stretches of time, against sets of moments


def moments(stretches):
    return {moment for a, b in stretches for moment in range(a, b)}


some = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda t: (t[0], sum(t))))


@given(some, some, st.integers(0, 40), st.integers(0, 20))
def test_stretches_are_sets_of_moments(first, second, start, long):
    a, b = union(first), union(second)
    assert moments(a) == moments(first)
    assert length(a) == len(moments(first))
    assert all(x[1] < y[0] for x, y in pairwise(a))
    assert moments(minus(a, b)) == moments(a) - moments(b)
    assert moments(both(a, b)) == moments(a) & moments(b)
    assert moments(within(a, start, start + long)) == moments(a) & {*range(start, start + long)}


# --- traces that are made here


def event(category, name, start, long, **args):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": long, "args": args}


def step(number, start, long):
    return event("user_annotation", f"ProfilerStep#{number}", start, long)


def kernel(name, start, long, asked, number, **args):
    """A kernel, and the call that launched it."""
    return [
        event("kernel", name, start, long, stream=7, correlation=number, **args),
        event("cuda_runtime", "cudaLaunchKernel", asked, 1, correlation=number),
    ]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"


def written(tmp_path, events, name="rank0.json", **header):
    path = tmp_path / name
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def one_step(tmp_path):
    """A loader until 20, kernels from 25 to 55 and from 60 to 80, a message from 50 to 70."""
    events = [
        step(3, 0, 100),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter", 0, 20),
        *kernel("gemm", 25, 30, 22, 1),
        *kernel(NCCL, 50, 20, 40, 2),
        *kernel("gemm", 60, 20, 41, 3),
        event("cuda_runtime", "cudaStreamSynchronize", 42, 38),
    ]
    return read_file(written(tmp_path, events))


def test_the_bars_of_a_step(tmp_path):
    (times,) = breakdown(one_step(tmp_path))
    assert times.total == 97  # the GPU was 3 behind Python when the trace began
    assert (times.compute, times.exposed, times.hidden) == (50, 5, 15)
    assert times.data == 17
    assert times.synchronization == 20  # after 80, where Python had waited
    assert times.launches == 5


def test_a_gpu_that_lags_has_steps_of_its_own(tmp_path):
    """Python is two steps ahead: each kernel counts for the step that asked for it."""
    events = []
    for number in range(3):
        events += [step(number, 10 * number, 10)]
        events += kernel("gemm", 100 * number + 50, 100, 10 * number + 5, number + 1)
    times = breakdown(read_file(written(tmp_path, events)))
    assert [each.compute for each in times] == [100, 100, 100]
    assert [each.end for each in times] == [150, 250, 350]


def test_a_step_lasts_until_all_that_it_launched_has_ended(tmp_path):
    """A message that was launched before the last kernel runs on after that."""
    events = [
        step(0, 0, 50),
        *kernel(NCCL, 10, 140, 5, 1),
        *kernel("gemm", 20, 30, 15, 2),
        step(1, 50, 150),
        *kernel("gemm", 160, 20, 60, 3),
    ]
    first, second = breakdown(read_file(written(tmp_path, events)))
    assert (first.end, second.start) == (150, 150)


def test_steps_of_older_versions_of_pytorch_are_operators(tmp_path):
    """As in the samples of Kineto's plugin for TensorBoard, of PyTorch 1.8 and 1.9."""
    events = [event("Operator", f"ProfilerStep#{n}", 100 * n, 100) for n in (5, 6)]
    events += [*kernel("gemm", 510, 50, 505, 1), *kernel("gemm", 610, 50, 605, 2)]
    assert read_file(written(tmp_path, events)).numbers == [5, 6]
    events = events[:2] + [event("Operator", "aten::mm", at, 40) for at in (510, 610)]
    (first, second) = breakdown(read_file(written(tmp_path, events)))
    assert (first.compute, second.compute) == (40, 40)


def test_a_file_says_which_rank_it_is_of_and_its_name_only_if_it_does_not(tmp_path):
    events = [step(0, 0, 50), *kernel("gemm", 10, 20, 5, 1)]
    said = written(tmp_path, events, "host1-rank0.json", distributedInfo={"rank": 8})
    silent = written(tmp_path, events, "rank3.json")
    assert [read_file(path).rank for path in (said, silent)] == [8, 3]


# --- recordings and ranks


def recording(tmp_path, name, number, at=0.0, long=50, **header):
    """A file of two steps from `number` on, with a kernel and then a message in each."""
    events = []
    for each in range(2):
        start = at + 100 * each
        events += [step(number + each, start, 100), *kernel("gemm", start, long, start, each * 2)]
        events += kernel(NCCL, start + long, 90 - long, start + 1, each * 2 + 1)
    return written(tmp_path, events, name, **header)


def read_all(capsys, *words):
    """What the command says, as data."""
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_files_of_one_worker_are_recordings_of_one_rank(tmp_path, capsys):
    """As `schedule(repeat=2)` and `tensorboard_trace_handler` write them in one process."""
    recording(tmp_path, "host_7.1759000000000000001.pt.trace.json", 2, 1000)
    recording(tmp_path, "host_7.1759000000000000002.pt.trace.json", 6, 2000)
    said = read_all(capsys, tmp_path)
    assert [[each["number"] for each in rank["steps"]] for rank in said["ranks"]] == [[6, 7]]
    assert said["notes"][0].startswith("Rank 0 has 2 recordings")
    assert "the last one, host_7.1759000000000000002.pt.trace.json" in said["notes"][0]
    first = read_all(capsys, tmp_path, "--recording", 1)
    assert [each["number"] for each in first["ranks"][0]["steps"]] == [2, 3]
    assert "this is recording 1" in first["notes"][0]
    assert main([str(tmp_path), "--recording", "3"]) == 1
    assert "--recording 3: rank 0 has only 2 recordings" in capsys.readouterr().err


def test_no_rank_is_called_slow_for_its_earlier_recording(tmp_path, capsys):
    """Both ranks are equal, but collectives took longer in the first recording."""
    for rank in range(2):
        told = {"distributedInfo": {"rank": rank, "world_size": 2}}
        recording(tmp_path, f"a{rank}.json", 2, 1000, 20, **told)
        recording(tmp_path, f"b{rank}.json", 6, 2000, 60, **told)
    said = read_all(capsys, tmp_path)
    assert [rank["file"] for rank in said["ranks"]] == ["b0.json", "b1.json"]
    assert said["slow_rank"] is None
    assert said["notes"][0].startswith("Each rank has up to 2 recordings")


def test_the_last_recording_is_one_that_all_ranks_have(tmp_path, capsys):
    """Rank 1 was stopped before its second recording."""
    ranks = [{"distributedInfo": {"rank": rank, "world_size": 2}} for rank in range(2)]
    recording(tmp_path, "a0.json", 2, 1000, **ranks[0])
    recording(tmp_path, "b0.json", 6, 2000, **ranks[0])
    recording(tmp_path, "a1.json", 2, 1000, **ranks[1])
    assert [rank["file"] for rank in read_all(capsys, tmp_path)["ranks"]] == ["a0.json", "a1.json"]


def test_the_last_recording_is_the_last_in_time(tmp_path, capsys):
    for name, base in (("a.json", 2e18), ("b.json", 1e18)):
        told = {"baseTimeNanoseconds": int(base), "distributedInfo": {"rank": 3}}
        recording(tmp_path, name, 2, 10, **told)
    assert [rank["file"] for rank in read_all(capsys, tmp_path)["ranks"]] == ["a.json"]


def test_ranks_that_were_recorded_in_different_steps_are_not_compared(tmp_path, capsys):
    for rank, long in enumerate((20, 60)):
        told = {"distributedInfo": {"rank": rank, "world_size": 2}}
        recording(tmp_path, f"{rank}.json", 2 + 4 * rank, 0, long, **told)
    said = read_all(capsys, tmp_path)
    assert said["slow_rank"] is None
    assert "recorded in different steps" in said["notes"][0]
    assert not any(row["last"] for row in said["collectives"])


def test_traces_without_a_rank_get_numbers_that_no_other_has(tmp_path, capsys):
    recording(tmp_path, "10.json", 2)
    recording(tmp_path, "9.json", 2)
    recording(tmp_path, "rank0.json", 2)
    said = read_all(capsys, tmp_path, tmp_path / "9.json")  # once, though it is named twice
    files = [(rank["rank"], rank["file"]) for rank in said["ranks"]]
    assert files == [(0, "rank0.json"), (1, "9.json"), (2, "10.json")]


def test_ranks_whose_collectives_differ_are_not_compared():
    reduced, gathered = (
        called(f"ncclDevKernel_{n}_RING", 0, 9, {}) for n in ("AllReduce", "AllGather")
    )
    assert matched([[reduced, gathered], [reduced, gathered]]) == [(reduced,) * 2, (gathered,) * 2]
    assert matched([[reduced, gathered], [gathered, reduced]]) == []
    assert matched([[reduced], [reduced, gathered]]) == []


@given(st.data())
def test_the_bars_add_up_and_the_events_order_does_not_matter(tmp_path_factory, data):
    spans = data.draw(
        st.lists(st.tuples(st.sampled_from("kmcls"), st.integers(0, 300), st.integers(1, 60)))
    )
    events = [step(0, 0, 100), step(1, 100, 110), *kernel("gemm", 5, 1, 1, 1000)]
    for number, (kind, start, long) in enumerate(spans, 1):
        if kind in "km":
            asked = max(0, start - data.draw(st.integers(0, 90)))
            events += kernel(NCCL if kind == "m" else "gemm", start, long, asked, number)
        elif kind == "c":
            events += [event("gpu_memcpy", "Memcpy HtoD", start, long, stream=7)]
        elif kind == "l":
            events += [event("user_annotation", "enumerate(DataLoader)#1", start, long)]
        else:
            events += [event("cuda_runtime", "cudaDeviceSynchronize", start, long)]
    events = data.draw(st.permutations(events))
    for times in breakdown(read_file(written(tmp_path_factory.mktemp("trace"), events))):
        bars = (times.compute, times.exposed, times.data, times.gaps)
        assert sum(bars) == pytest.approx(times.total)
        assert min(*bars, times.synchronization, times.launches, times.hidden) >= -1e-6
        assert times.asking + times.pauses <= times.launches + 1e-6


def test_a_file_may_come_in_pieces_of_any_size():
    text = (TRACES / "recommender-128-rank-1.json.gz").read_bytes()
    whole_file = [*(reader := Events("a")).feed(text)]
    reader.close()
    assert len(whole_file) == reader.count
    for packed, piece in ((text, 777), (gzip.decompress(text), 4096)):
        other = Events("b")
        found = []
        for at in range(0, len(packed), piece):
            found += other.feed(packed[at : at + piece])
        other.close()
        assert found == whole_file
        assert other.header["licence"].startswith("MIT")


def test_operators_and_gloo_count_where_there_is_no_gpu(tmp_path):
    events = [
        step(0, 0, 100),
        event("cpu_op", "aten::mm", 10, 40),
        event("user_annotation", "gloo:all_reduce", 40, 50),
        event("user_annotation", "enumerate(DataLoader)#1", 0, 10),
        event("cpu_op", "aten::stack", 5, 2),  # inside the loader: no computation
    ]
    trace = read_file(written(tmp_path, events))
    (times,) = breakdown(trace)
    assert (times.compute, times.exposed, times.hidden, times.data) == (40, 40, 10, 10)
    assert "No GPU events" in trace.notes[0]


# --- who comes last


def two_ranks(tmp_path, slow=1, first=0):
    """The slow rank computes 60 of 100, and its collective is short."""
    traces = []
    for rank in range(first, first + 2):
        long = 60 if rank == slow else 20
        events = []
        for number in range(4):
            at = 100 * number
            events += [step(number, at, 100), *kernel("gemm", at, long, at, 2 * number + 1)]
            events += kernel(NCCL, at + long, 90 - long, at + 1, 2 * number + 2)
        told = {"rank": rank, "world_size": first + 2}
        path = written(tmp_path, events, f"{rank}.json", distributedInfo=told)
        traces.append(read_file(path))
    return traces


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_with_the_shortest_collectives_is_the_slow_one(tmp_path, slow):
    verdict = judge(two_ranks(tmp_path, slow))
    assert verdict.late is not None
    assert (verdict.late.rank, verdict.late.waits) == (slow, 40)
    first = verdict.findings[0]
    assert first.cause == "slow rank"
    assert f"Rank {slow} comes last" in first.said
    assert re.search(r"It computes .* longer per step\.", first.said)


@pytest.mark.parametrize("slow", [8, 9])
def test_ranks_keep_their_numbers_where_only_some_were_traced(tmp_path, capsys, slow):
    two_ranks(tmp_path, slow, first=8)
    main([str(tmp_path)])
    said = capsys.readouterr().out
    assert f"Rank {slow} comes last" in said
    assert re.findall(r"rank (\d+) last in", said) == [str(slow)]


def test_no_rank_is_named_where_now_this_one_and_now_that_one_is_last(tmp_path):
    a, b = two_ranks(tmp_path)
    half = len(a.kernels) // 2
    a.kernels, b.kernels = (
        a.kernels[:half] + b.kernels[half:],
        b.kernels[:half] + a.kernels[half:],
    )
    assert judge([a, b]).late is None


def test_bus_bandwidth_is_that_of_nccl_tests():
    """https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""
    told = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", "Group size": 4}
    seconds = 1e-3
    reduced = called(NCCL, 0, 1e6 * seconds, told)
    assert reduced.bandwidth == pytest.approx(4000 / seconds * 2 * 3 / 4)
    gathered = called("ncclDevKernel_AllGather_RING_LL", 0, 1e6 * seconds, told)
    assert gathered.bandwidth == pytest.approx(4000 / seconds * 3 / 4)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "all-reduce"),
        ("void deep_ep::internode::dispatch<true, 8, false, 8>(int4*)", "all-to-all"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)", "all-to-all"),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", "all-to-all"),
    ],
)
def test_kinds_of_collectives(name, kind):
    assert called(name, 0, 1, {}).kind == kind


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [("AllGather", 250, 1000), ("ReduceScatter", 1000, 250), ("AllReduce", 1000, 1000)],
)
def test_the_larger_of_both_messages_counts(name, given, made):
    told = {"In msg nelems": given, "Out msg nelems": made, "dtype": "Float", "Group size": 4}
    assert called(f"ncclDevKernel_{name}_RING_LL", 0, 1000, told).bytes == 4000


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float8_e4m3fn", 1),
        ("Char", 1),
        ("int8", 1),
        ("Short", 2),
        ("BFloat16", 2),
        ("Int", 4),
        ("int64", 8),
        ("ComplexFloat", 8),
        ("QInt8", 0),
    ],
)
def test_an_element_has_the_size_of_its_own_type_and_not_of_one_that_begins_alike(dtype, size):
    told = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": dtype, "Group size": 4}
    assert called(NCCL, 0, 1000, told).bytes == 1000 * size


# --- each rule


def test_a_model_says_mfu_and_how_slow_the_kernels_are(tmp_path):
    work = StepWork(flops=97e-6 * 0.25 * 1e12, peak=1e12)
    verdict = judge([one_step(tmp_path)], work)
    assert verdict.mfu == pytest.approx(0.25)
    assert verdict.slow_kernels == pytest.approx(50 - 97 * 0.25)


def test_a_synchronization_is_named(tmp_path):
    events = []
    for number in range(4):
        at = 1000 * number
        events += [step(number, at, 1000), *kernel("gemm", at, 500, at, number + 1)]
        events += [event("cuda_runtime", "cudaStreamSynchronize", at + 10, 490)]
        events += [event("cpu_op", "aten::_local_scalar_dense", at + 9, 491)]  # item() calls it
        events += [event("cpu_op", "aten::item", at + 9, 492)]
    (finding, *_) = judge([read_file(written(tmp_path, events))]).findings
    assert finding.cause == "synchronization"
    assert "(aten::item, once in a step)" in finding.said


@pytest.mark.parametrize("first", [None, "Broadcast", "AllGather"])
def test_messages_that_would_fit_but_leave_at_the_end(tmp_path, first):
    """Buffers that DDP broadcasts, and parameters that FSDP gathers, are no gradients."""
    events = []
    for number in range(3):
        at = 1000 * number
        events += [step(number, at, 1000), *kernel("gemm", at, 700, at, 2 * number + 1)]
        events += kernel(NCCL, at + 700, 300, at + 1, 2 * number + 2)
        if first:
            events += kernel(NCCL.replace("AllReduce_Sum_f32", first), at, 10, at, 10 + number)
    (finding, *_) = judge([read_file(written(tmp_path, events))]).findings
    assert finding.cause == "messages that leave late"
    assert "when 100% of the computation is done" in finding.said


def test_more_messages_than_can_hide(tmp_path):
    told = {"In msg nelems": 10_000_000, "dtype": "Float", "Group size": 2}
    events = []
    for number in range(3):
        at = 1000 * number
        events += [step(number, at, 1000), *kernel("gemm", at, 300, at, 2 * number + 1)]
        events += kernel(NCCL, at + 200, 800, at + 1, 2 * number + 2, **told)
    trace = read_file(written(tmp_path, events))
    (finding, *_) = judge([trace], StepWork(1e9, 1e15, tokens=1000)).findings
    assert finding.cause == "more messages than computation"
    # C = 10⁹/300 µs, W = 40 MB/800 µs, gC/2W with g = 2
    assert f"gC/2W is {1e9 / 300e-6 / (40e6 / 800e-6):,.0f}" in finding.said


def step_with(tmp_path, *names, device="", long=20, period=100):
    """What is said of three steps with a kernel of each name, launched when it begins."""
    events = []
    for number in range(3):
        at = period * len(names) * number
        events += [step(number, at, period * len(names))]
        for each, name in enumerate(names):
            begin = at + period * each
            events += kernel(name, begin, long, begin, 100 * number + each + 1)
    header = {"deviceProperties": [{"name": device}]}
    return judge([read_file(written(tmp_path, events, **header))]).findings


EAGER = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
LOOKUP = "void split_embedding_codegen_forward_unweighted_kernel<float>(float*)"


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["triton_poi_fused_add_0", "nvjet_tst_64x8", "flash_fwd"], "are compiled already"),
        ([LOOKUP, "volta_sgemm_128x64_nn"], "but not the embedding tables"),
        (["flash_fwd_kernel", "nvjet_tst_64x8"], "Compile the blocks"),
        (["cudnn_ampere_scudnn_128x64", EAGER], "Compile the model"),
    ],
)
def test_advice_on_launches_fits_the_model_that_the_kernels_show(tmp_path, names, advice):
    found = step_with(tmp_path, *names)[0]
    assert found.cause == "Python is too slow"
    assert advice in found.said


def test_a_few_compiled_kernels_do_not_make_a_compiled_model(tmp_path):
    """Megatron-LM and apex compile single functions; most of what could be fused is eager."""
    found = step_with(tmp_path, "triton__0d1d2d3d4de", EAGER, EAGER, EAGER, "volta_sgemm_32x32_nn")
    assert found[0].cause == "Python is too slow"
    assert "Compile the model" in found[0].said


def test_long_pauses_are_not_slow_launches(tmp_path):
    """In each step, 20 kernels with gaps of 50 µs between them, and a pause of 30 ms."""
    events = []
    for number in range(3):
        at = 40_000 * number
        events += [step(number, at, 40_000)]
        for each in range(20):
            begin = at + 100 * each
            events += kernel("gemm", begin, 50, begin, 100 * number + each + 1)
        events += kernel("gemm", at + 32_000, 8_000, at + 32_000, 100 * number + 99)
    trace = read_file(written(tmp_path, events))
    assert [each.pauses for each in breakdown(trace)] == [30_050] * 3
    (found,) = judge([trace]).findings
    assert found.cause == "pauses"
    assert "The GPU is idle for 30 ms of each step, in pauses of more than 5 ms" in found.said


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "pinned memory with non_blocking=True, while"),
        ("Memcpy DtoH (Device -> Pinned)", "log less often"),
        ("Memcpy DtoD (Device -> Device)", "stay on the GPU"),
    ],
)
def test_advice_on_copies_fits_the_way_they_go(tmp_path, name, advice):
    events = [step(0, 0, 100), *kernel("gemm", 0, 40, 0, 1), event("gpu_memcpy", name, 40, 60)]
    (found,) = judge([read_file(written(tmp_path, events))]).findings
    assert found.cause == "copies"
    assert advice in found.said


def test_advice_on_tensor_cores_fits_the_gpu(tmp_path):
    names = ["volta_sgemm_128x64_nn"]
    (found,) = step_with(tmp_path, *names, device="Tesla V100-SXM2-32GB", long=100)
    assert "use fp16" in found.said
    (found,) = step_with(tmp_path, *names, device="NVIDIA H100 80GB HBM3", long=100)
    assert "use bf16, or TF32" in found.said


def fsdp_step(tmp_path, long, compute):
    """A gathering and a scattering in each of three steps, in the way of the computation."""
    events = []
    for number in range(3):
        at = 1000 * number
        events += [step(number, at, 1000)]
        gathered = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events += kernel(gathered, at, long, at, 3 * number + 1)
        events += kernel("gemm", at + long, compute, at + 1, 3 * number + 2)
        scattered = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"
        events += kernel(scattered, at + long + compute, long, at + 2, 3 * number + 3)
    return judge([read_file(written(tmp_path, events))]).findings[0]


def test_advice_on_messages_fits_fsdp(tmp_path):
    late = fsdp_step(tmp_path, 200, 600)
    assert late.cause == "messages that leave late"
    assert "prefetching that is off (set_modules_to_forward_prefetch)" in late.said
    much = fsdp_step(tmp_path, 350, 300)
    assert much.cause == "more messages than computation"
    assert "reshard_after_forward=False" in much.said
    assert "accumulation" not in much.said


def test_advice_on_messages_knows_fsdp_by_its_annotations(tmp_path):
    """Gloo has no reduce-scatter: PyTorch takes its all-reduce instead."""
    for name in ("FSDP::all_gather (blocks.0)", "FullyShardedDataParallel.forward"):
        events = []
        for number in range(3):
            at = 1000 * number
            events += [step(number, at, 1000), event("cpu_op", "aten::mm", at, 600)]
            events += [event("user_annotation", name, at, 1)]
            events += [event("user_annotation", "gloo:all_reduce", at + 600, 300)]
        (found, *_) = judge([read_file(written(tmp_path, events))]).findings
        assert found.cause == "messages that leave late"
        assert "a wrapper around the whole model" in found.said


def test_a_reduced_trace_says_the_same(tmp_path):
    """As `bench.reduce_traces` makes the examples; here of FSDP2 over gloo, with one unit."""
    events = []
    for number in range(3):
        at = 1000 * number
        events += [step(number, at, 1000), event("user_annotation", "FSDP::all_gather", at, 1)]
        events += [event("user_annotation", "gloo:all_gather", at, 20)]
        events += [event("cpu_op", "aten::mm", at + 20, 580)]
        events += [event("cpu_op", "MmBackward0", at + 300, 50)]
        events += [event("user_annotation", "gloo:all_reduce", at + 600, 300)]
    whole_trace = read_file(written(tmp_path, events))
    small = read_file(written(tmp_path, reduced(whole_trace, 0, 3), "small.json"))
    assert small.backward == [300, 1300, 2300]
    said, small_said = (judge([each]).findings[0].said for each in (whole_trace, small))
    assert "leave when 100% of the computation is done. Look for a wrapper" in said
    assert small_said == said


def megatron_step(tmp_path, early, operator="autograd::engine::evaluate_function: MmBackward0"):
    """Three steps with all-reduces before that operator, and 20 after it; all are exposed."""
    events, correlation = [], 0
    for number in range(3):
        at = 10_000 * number
        events += [step(number, at, 10_000)]
        events += [event("cpu_op", operator, at + 4_000, 10)]
        begins = [at + 200 * each for each in range(early)]
        begins += [at + 5_000 + 200 * each for each in range(20)]
        for begin in begins:
            for name, start in (("gemm", begin), (NCCL, begin + 100)):
                correlation += 1
                events += kernel(name, start, 100, start, correlation)
    found = judge([read_file(written(tmp_path, events))]).findings
    return next((each.said for each in found if each.cause == "activations in the way"), "")


def test_reductions_of_a_forward_pass_are_of_activations(tmp_path):
    """As in the traces of Megatron-LM on 8 A100s in astra-sim's history."""
    said = "reductions come from the forward pass"
    assert f"In a step, 20 of 40 {said}" in megatron_step(tmp_path, 20)
    assert not megatron_step(tmp_path, 1)
    assert f"In a step, 20 of 20 {said}" in megatron_step(tmp_path, 0, "TorchDynamo Cache Lookup")


# --- public traces, and the peer on them


@pytest.mark.parametrize("name", sorted(PEER["breakdown"]))
def test_the_peer_divides_public_traces_in_the_same_way(name):
    """HolisticTraceAnalysis's temporal breakdown and overlap, as recorded by `bench.traces`."""
    ours, peer = whole(read_file(TRACES / f"{name}.json.gz")), PEER["breakdown"][name]
    for ours_is, peers_is in zip(ours[:4], [peer[key] for key in ours._fields[:4]], strict=True):
        assert ours_is == pytest.approx(peers_is, rel=0.01)
    assert 100 * ours.overlap == pytest.approx(peer["overlap"] or 0.0, abs=0.01)


def test_all_public_traces_were_compared():
    names = {path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz")}
    assert {name for name in names if not name.startswith("slow-")} == {*PEER["breakdown"]}
    assert len(PEER["breakdown"]) >= 5
    for path in TRACES.glob("*.json.gz"):
        assert path.stat().st_size <= 100_000


@pytest.mark.parametrize("row", PEER["rows"], ids=lambda row: row["id"])
def test_a_tab_reads_a_hundred_thousand_events_in_five_seconds(row):
    """As recorded by `bench.traces`: of the processor, whatever else the machine did."""
    assert row["tab_processor_s"] <= 5 * row["events"] / 100_000
    assert row["tab_bytes"] <= 500e6
    assert row["ratio"] > 1, "the peer is faster"


def causes(*names):
    verdict = judge([read_file(TRACES / f"{name}.json.gz") for name in names])
    return [finding.cause for finding in verdict.findings], verdict


def test_of_public_traces_the_rule_that_broke_is_named():
    found, verdict = causes("small-messages-2-v100")
    assert found[:2] == ["Python is too slow", "a message for each tensor"]
    assert "404 collectives in a step, and 404 gradients" in verdict.findings[1].said
    found, verdict = causes("resnet-2-a100")
    assert found[0] == "Python is too slow"
    assert verdict.findings[0].time > 0.6 * verdict.step.total
    found, verdict = causes("resnet-1-v100")
    assert verdict.step.compute > 0.95 * verdict.step.total
    assert found in ([], ["slow kernels"])
    found, verdict = causes("recommender-128-rank-0", "recommender-128-rank-1")
    assert "exchange in the way" in found
    assert "2 ranks of 128" in verdict.notes[-1]


@pytest.mark.parametrize(("reason", "cause"), [("rank", "slow rank"), ("loader", "loader")])
def test_of_the_jobs_that_are_slow_for_a_planted_reason_it_is_named(reason, cause):
    found, verdict = causes(f"slow-{reason}-0", f"slow-{reason}-1")
    assert found[0] == cause
    assert (verdict.late is not None) == (reason == "rank")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "void at::native::(anonymous namespace)::f<4, std::array<char*, 2> >(int, float)",
            "at::native::f",
        ),
        ("void cutlass::device::Gemm<T<1>, 2>::run<3>(Params)", "cutlass::device::Gemm::run"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("<unnamed>", "<unnamed>"),
        ("std::enable_if<((8)>(0)), void>::type vllm::rms_norm<float>(int)", "vllm::rms_norm"),
        ("_ZN2ck12_GLOBAL__N_112kernel_gemm_IN4arg1EE", "ck::kernel_gemm_"),
        ("_Z10attn_fwd_1PfS_", "attn_fwd_1"),
        ("_ZSt4swap", "_ZSt4swap"),
    ],
)
def test_kernels_are_named_without_their_types(name, said):
    assert short(name) == said


NAMES = json.loads(Path(__file__).with_name("kernel_names.json").read_text())["families"]


@pytest.mark.parametrize("known", NAMES)
def test_kernels_of_public_traces_have_the_families_they_belong_to(known):
    """As checked by hand. The file says of which traces, threads and sources the names are."""
    found = {name: family(name) for name in NAMES[known]}
    assert found == dict.fromkeys(NAMES[known], known)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("triton_tem_fused_addmm_relu_3", PRODUCTS),
        ("triton_tem_fused_bmm_5", PRODUCTS),
        ("triton_tem_fused_flex_attention_0", ATTENTION),
        ("triton_poi_fused_all_reduce_wait_tensor_3", COMPILED),
        ("matmul_kernel", PRODUCTS),
        ("void conv_depthwise2d_forward_kernel<3, float, int>(float*)", PRODUCTS),
        ("void vllm::convert_fp8_kernel<unsigned char, __half>(__half*)", ELEMENTS),
        ("convert_element_type", ELEMENTS),
        ("void at::native::(anonymous namespace)::renormalize_rows(float*)", OTHER),
        ("void cudnn::bn_fw_inf_1C11_kernel_NHWC<float>(float)", NORMS),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", MESSAGE),
        ("void tensorrt_llm::kernels::allreduce_fusion_kernel_oneshot<float>(float)", MESSAGE),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<float> >(float)", ATTENTION),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>(float)", PRODUCTS),
        ("cutlass::Kernel", PRODUCTS),
        ("void foldedNhwcToNhwcKernel<float, float, (cudnnKernelDataType_t)0>(int)", COPIES),
        ("void fft1d_r2c_32<float, float, float2, false, false>(float2*)", PRODUCTS),
        ("void flip_filter<float, float>(float*, float const*, int)", PRODUCTS),
        ("void deep_ep::internode::dispatch<true, 8, false, 8>(int4*)", MESSAGE),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)", MESSAGE),
        ("a_kernel_of_my_own", OTHER),
    ],
)
def test_families_go_by_whole_words(name, known):
    assert family(name) == known


def test_of_matrix_products_it_is_not_said_that_compiling_fuses_them(tmp_path):
    def shares(*names):
        events = [step(0, 0, 100 * len(names))]
        for number, name in enumerate(names):
            events += kernel(name, 100 * number, 100, 100 * number, number + 1)
        return judge([read_file(written(tmp_path, events))]).findings

    assert shares("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "fused_moe_kernel") == []
    assert shares("triton_poi_fused_add_mul_2", "a_kernel_of_my_own") == []
    eager = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
    (found,) = shares(eager, "fused_moe_kernel")
    assert "50% are elementwise operations, norms and reductions" in found.said


def test_kernels_are_counted_per_step(tmp_path, capsys):
    """Three in each of two steps, and one that was launched before them."""
    events = kernel("gemm", -50, 20, -60, 99)
    for number in range(2):
        at = 100 * number
        events += [step(number, at, 100)]
        for each in range(3):
            events += kernel("gemm", at + 20 * each, 10, at, 10 * number + each + 1)
    assert main([str(written(tmp_path, events))]) == 0
    assert "0.03 ms      3.0 × gemm" in capsys.readouterr().out


def test_a_long_name_is_clipped(tmp_path, capsys):
    """Of 1,644 characters, as mangled names of composable_kernel are; this one stays long."""
    long = "Cijk_Alik_Bljk_" + "SB_MT64x64x8_" * 140
    path = written(tmp_path, [step(0, 0, 100), *kernel(long, 5, 50, 1, 1)])
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "Cijk_Alik" in said
    assert max(len(line) for line in said.split("\n\n")[2].splitlines()) < 100


def test_kernels_have_families():
    trace = read_file(TRACES / "resnet-2-a100.json.gz")
    families = {share.name: share.time for share in by_family(trace.kernels)}
    assert families["matrix products"] > families["optimizer"] > 0


def test_pages_that_are_named_are_there_with_their_titles():
    for page, title in PAGES.items():
        assert f"\n# {title}\n" in (ROOT / f"{page}.md").read_text()


# --- odd fields, several GPUs, files that can't be read

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "0x1f", "x", "7"]),
    lambda each: (
        st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=2), each, max_size=2)
    ),
    max_leaves=3,
)
FIELDS = ["name", "cat", "ts", "dur", "args", "pid", "ph"]
ARGS = [
    "correlation",
    "stream",
    "device",
    "In msg nelems",
    "Group size",
    "dtype",
    "Collective name",
]
HEADERS = ["distributedInfo", "deviceProperties", "baseTimeNanoseconds"]


@given(st.data())
def test_a_field_with_any_value_is_read_or_refused_in_a_line(tmp_path_factory, data):
    told = {"In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float", "Group size": 2}
    events = [step(0, 0, 100), step(1, 100, 100), *kernel("gemm", 5, 50, 1, 1)]
    events += [*kernel(NCCL, 60, 20, 40, 2, **told), *kernel("gemm", 110, 50, 105, 3)]
    for _ in range(data.draw(st.integers(1, 3))):
        each = data.draw(st.sampled_from(events))
        if isinstance(each["args"], dict) and data.draw(st.booleans()):
            each["args"][data.draw(st.sampled_from(ARGS))] = data.draw(junk)
        else:
            each[data.draw(st.sampled_from(FIELDS))] = data.draw(junk)
    header = {}
    if data.draw(st.booleans()):
        header["distributedInfo"] = {"rank": data.draw(junk), "world_size": data.draw(junk)}
    if data.draw(st.booleans()):
        header[data.draw(st.sampled_from(HEADERS))] = data.draw(junk)
    path = written(tmp_path_factory.mktemp("trace"), events, **header)
    said = ""
    try:
        said = as_text(judge(one_for_each_rank([read_file(path)])))
    except TraceError as error:
        said = str(error)
    assert "rank" in said


@pytest.mark.parametrize(
    ("events", "total"),
    [
        ([step(0, 0, 0), *kernel("gemm", 5, 50, 1, 1)], 50),
        ([step(0, 5, 0), event("cpu_op", "aten::mm", 5, 3)], 3),
        ([step(0, 0, 10), *kernel("gemm", 500, 10, 400, 1)], 10),
        (kernel("gemm", 5, 0, 1, 1), 0),
        ([event("cpu_op", "aten::mm", 5, 0)], 0),
    ],
    ids=["empty step", "empty step on a CPU", "kernel outside", "empty kernel", "empty operator"],
)
def test_steps_without_length_or_kernels_are_not_divided(tmp_path, events, total):
    path = written(tmp_path, events)
    if total:
        assert judge([read_file(path)]).step.total == total
        return
    with pytest.raises(TraceError, match="was anything run"):
        read_file(path)


def test_numbers_may_be_hexadecimal_and_text(tmp_path):
    events = [step(0, 0, 100), *kernel("gemm", 5, 50, 1, "0x1f")]
    told = {"rank": "2", "world_size": "4"}
    trace = read_file(written(tmp_path, events, distributedInfo=told, deviceProperties=["A100"]))
    assert (trace.rank, trace.ranks, trace.launched) == (2, 4, {31: 1})


def test_gpus_of_one_process_are_not_merged(tmp_path):
    """Each computes for 40% of a step, one after the other."""
    events = [step(0, 0, 100), *kernel("gemm", 0, 40, 0, 1, device=0)]
    events += kernel("gemm", 40, 40, 0, 2, device=1)
    events += [event("gpu_memcpy", "Memcpy PtoP", 80, 5, device=2)]
    trace = read_file(written(tmp_path, events))
    (times,) = breakdown(trace)
    assert (times.compute, times.gaps) == (40, 60)
    assert trace.notes == [
        "This process used 2 GPUs. The bars are of GPU 0, which computed longest; GPU 1 computed "
        "100% as long."
    ]


def test_a_file_that_cannot_be_read_does_not_silence_the_others(tmp_path, capsys):
    written(tmp_path, [step(0, 0, 100), *kernel("gemm", 5, 50, 1, 1)], "rank1.json")
    (tmp_path / "rank0.json").write_text("hello")
    (tmp_path / "config.json").write_text("{}")
    said = read_all(capsys, tmp_path)
    assert [rank["file"] for rank in said["ranks"]] == ["rank1.json"]
    assert [note[:30] for note in said["notes"]] == [
        "Not read: config.json isn't a ", "Not read: rank0.json isn't a t",
    ]  # fmt: skip
    (tmp_path / "rank1.json").unlink()
    assert main([str(tmp_path)]) == 1
    assert "(and 1 more)" in capsys.readouterr().err


# --- what is no trace


GOOD = json.dumps({"traceEvents": [step(0, 0, 9), event("cpu_op", "aten::mm", 1, 2)]}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "isn't a trace: it is empty"),
        (gzip.compress(b"", mtime=0), "isn't a trace: it is empty"),
        (b"hello", "isn't a trace"),
        (b'{"loss": [1, 2]}', "isn't a trace"),
        (b"\x80\x02}q\x00", "isn't a trace"),
        (GOOD[:-20], "ends in the middle of its events"),
        (gzip.compress(GOOD, mtime=0)[:-12], "a gzip file that ends in the middle"),
        (
            gzip.compress(GOOD, mtime=0)[:20] + b"xxxxxxxxx",
            "a (damaged )?gzip file",
        ),
        (b'{"traceEvents": []}', "neither kernels nor operators"),
        (
            json.dumps({"traceEvents": [event("mtia_ccp_events", "f", 0, 1)]}).encode(),
            "was recorded on MTIA: only GPUs and CPUs",
        ),
    ],
    ids=range(10),
)
def test_what_is_no_trace_is_one_line(tmp_path, capsys, data, message):
    path = tmp_path / "bad.json.gz"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message) as raised:
        read_file(path)
    assert "bad.json.gz" in str(raised.value)
    assert main([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("read_trace: ")
    assert said.count("\n") == 1


def written_badly(tmp_path, *lines):
    """A complete file as Kineto writes it, with these lines as events between two good ones."""
    good = [json.dumps(each, indent=2) for each in (step(0, 0, 100), *kernel("gemm", 5, 50, 1, 1))]
    path = tmp_path / "rank0.json"
    events = ",\n  ".join([*good[:2], *lines, good[2]])
    path.write_text(
        f'{{"distributedInfo": {{"rank": 3}}, "traceEvents": [{events}\n  ],\n "a": 1}}'
    )
    return path


QUOTES = '{"ph": "X", "name": "{"device": "cpu", "dtype": "float32"}(12): run", "ts": 1, "dur": 2}'
BACKSLASH = r'{"ph": "X", "cat": "python_function", "name": "C:\Users\me\train.py(3): f", "ts": 1}'
INF = '{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 2, "args": {"GB/s": inf}}'


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (QUOTES, '"{"device": "cpu", "dtype": "float32"}(12): run"'),
        (BACKSLASH, r'"C:\Users\me\train.py(3): f"'),
        (INF, '"Memcpy"'),
        (r'{"ph": "X", "name": "C:\a\", "ts": 1}', r'"C:\a\"'),
    ],
    ids=range(4),
)
def test_an_event_that_is_not_json_is_named_and_left_out(tmp_path, bad, named):
    path = written_badly(tmp_path, bad)
    trace = read_file(path)
    assert (trace.rank, len(trace.kernels), trace.launched) == (3, 1, {1: 1})
    assert trace.notes[0].startswith("1 event is left out, because it is not valid JSON: number 3")
    assert f"with the name {named}. (PyTorch" in trace.notes[0]
    assert breakdown(trace)[0].compute == 50
    data, pieces, found = path.read_bytes(), Events("a"), []
    for at in range(0, len(data), 7):
        found += pieces.feed(data[at : at + 7])
    pieces.close()
    assert (len(found), pieces.damaged, pieces.count) == (3, 1, 4)


def test_events_that_are_not_json_may_be_many_and_the_last(tmp_path):
    trace = read_file(written_badly(tmp_path, QUOTES, INF, BACKSLASH))
    assert trace.notes[0].startswith("3 events are left out, because they are not valid JSON")
    path = written(tmp_path, [step(0, 0, 100), *kernel("gemm", 5, 50, 1, 1)])
    path.write_text(f"{path.read_text()[:-2]}, {QUOTES}, {INF}]}}")
    trace = read_file(path)
    assert len(trace.kernels) == 1
    assert "2 events are left out" in trace.notes[0]
    path.write_text(f"{path.read_text()[:-30]}")
    with pytest.raises(TraceError, match="ends in the middle of its events, after 3 of them"):
        read_file(path)


def test_a_header_that_is_not_json_is_read_as_far_as_needed(tmp_path):
    path = written(tmp_path, [*kernel("gemm", 5, 50, 1, 1)], distributedInfo={"rank": 5})
    path.write_text(path.read_text().replace("{", r'{"host": "C:\Users", ', 1))
    assert read_file(path).rank == 5


def test_too_much_for_a_tab_is_told_while_it_is_read():
    reader = Events("huge.json.gz", most=100_000)
    packed = gzip.compress(b'{"traceEvents": [' + b" " * 10_000_000)
    with pytest.raises(TraceError, match=r"more than 0 MB .* python -m distributed.read_trace"):
        [*reader.feed(packed)]
    assert reader.unpacked < 5_000_000, "it did not unpack the rest"


def test_steps_that_overlap_and_no_steps_at_all_are_one_step(tmp_path):
    both_steps = [step(0, 0, 90), step(1, 10, 90)]
    for steps, note in ((both_steps, "overlap"), ([], "No ProfilerStep#")):
        trace = read_file(written(tmp_path, [*steps, *kernel("gemm", 5, 50, 1, 1)]))
        assert [times.compute for times in breakdown(trace)] == [50]
        assert note in trace.notes[0]


def test_odd_steps_are_told(tmp_path):
    events = []
    at = 0
    for number, long in enumerate([100, 100, 300, 100]):
        events += [step(number, at, long), *kernel("gemm", at, long - 5, at, number + 1)]
        at += long
    assert [each.number for each in odd_steps(breakdown(read_file(written(tmp_path, events))))] == [
        2
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no such file or folder"),
        (["{empty}"], "no *.json"),
        (["{trace}", "--model", "gpt-9", "--tokens", "8"], "give a number of parameters, or one"),
        (["{trace}", "--model", "7e9", "--tokens", "8", "--gpu", "h1000"], "h1000"),
    ],
)
def test_wrong_words_are_one_line(tmp_path, capsys, words, message):
    path = written(tmp_path, [step(0, 0, 100), *kernel("gemm", 5, 50, 1, 1)])
    (tmp_path / "empty").mkdir()
    words = [word.format(empty=tmp_path / "empty", trace=path) for word in words]
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_the_command_reads_a_folder_without_any_library(tmp_path):
    for rank in range(2):
        name = f"recommender-128-rank-{rank}.json.gz"
        (tmp_path / name).write_bytes((TRACES / name).read_bytes())
    command = [sys.executable, "-I", "-S", "-c"]
    run = "import sys, runpy; sys.path[:0] = [sys.argv.pop(1)]; runpy.run_module('distributed.read_"
    command += [f"{run}trace', run_name='__main__')", str(ROOT / "code"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ranks · 2 steps" in done.stdout
    said = json.loads(subprocess.check_output([*command, "--json"]))
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1]
    assert said["findings"]


def test_a_model_is_a_preset_or_a_number_of_parameters():
    work = work_of("6.7e9", 3400, 0, "h100")
    assert work is not None
    assert work.flops / work.peak == pytest.approx(6 * 6.7e9 * 3400 / 989e12, rel=0.05)
    assert work_of("", 100, 0, "h100") is None
