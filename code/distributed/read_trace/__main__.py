"""The command.

    python -m distributed.read_trace FOLDER [FILE …]
    python -m distributed.read_trace traces/ --model llama-3-8b --tokens 8192 --gpu h100

Files are `.json` or `.json.gz`. Of several recordings of one rank the last one is read. With the
model's shape it says the MFU.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from distributed.planner.hardware import GPUS, gpu
from distributed.planner.shapes import PRESETS, of_size
from distributed.read_trace.events import PIECE, Events, TraceError
from distributed.read_trace.rank_trace import Collector, RankTrace
from distributed.read_trace.recordings import one_for_each_rank
from distributed.read_trace.summary import as_data, as_text
from distributed.read_trace.verdict import StepWork, judge
from distributed.runtime.script import Parser

ENDS = (".json", ".json.gz", ".trace.gz")


def read_file(path: Path) -> RankTrace:
    """One rank's trace. Raises TraceError."""
    reader, kept = Events(path.name), Collector(path.name)
    with path.open("rb") as file:
        while data := file.read(PIECE):
            for event in reader.feed(data):
                kept.take(event)
    reader.close()
    return kept.finish(reader)


def in_order(path: Path) -> list[tuple[int, str]]:
    """What sorts names by the numbers in them: 9.json before 10.json."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def traces_in(paths: Iterable[Path]) -> list[Path]:
    """The files of folders, and the files themselves. Raises TraceError where there are none."""
    found: list[Path] = []
    for path in dict.fromkeys(paths):
        if not path.exists():
            raise TraceError(f"{path}: no such file or folder")
        inside = sorted(path.iterdir(), key=in_order) if path.is_dir() else []
        found += [file for file in inside if file.name.endswith(ENDS)] if path.is_dir() else [path]
    if not found:
        first = paths[0] if isinstance(paths, list) else ""
        raise TraceError(f"{first}: no *.json or *.json.gz in this folder")
    return list({file.resolve(): file for file in found}.values())


def work_of(model: str, tokens: float, context: int, on: str) -> StepWork | None:
    """What a step computes: a preset's name, or a number of parameters. Raises ValueError."""
    if not model or not tokens:
        return None
    if model in PRESETS:
        shape = PRESETS[model]
    else:
        try:
            shape = of_size(float(model))
        except ValueError:
            raise ValueError(
                f"--model {model}: give a number of parameters, or one of {', '.join(PRESETS)}"
            ) from None
    return StepWork(tokens * shape.flops(context or 0), gpu(on).peak, tokens)


def guess(device: str) -> str:
    """The GPU's name in our table, by what the trace calls it."""
    said = device.lower()
    order = ("h100", "h200", "b200", "mi300x", "l40s", "4090", "v100", "p100")
    if "a100" in said:
        return "a100"
    return next((name for name in order if name in said and name in GPUS), "h100")


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m distributed.read_trace", description=__doc__)
    folder = "folder with the traces of all ranks, or single files"
    parser.add_argument("paths", nargs="+", type=Path, metavar="FOLDER", help=folder)
    parser.add_argument(
        "--recording", type=int, default=0, metavar="N",
        help="number of the recording of each rank, from 1 (default: the last one)",
    )  # fmt: skip
    model = "preset of the planner, or number of parameters, for the share of the GPU's peak"
    parser.add_argument("--model", default="", help=model)
    tokens = "tokens of one rank in one step, which --model needs"
    parser.add_argument("--tokens", type=float, default=0.0, help=tokens)
    parser.add_argument("--context", type=int, default=0, help="tokens of a sequence (default: 0)")
    parser.add_argument("--gpu", default="", help="kind of GPU (default: the one in the trace)")
    parser.add_argument("--json", action="store_true", help="answer as JSON, for programs")
    asked = parser.parse_args(argv)
    traces, unread = [], []
    try:
        for path in traces_in(asked.paths):
            try:
                traces.append(read_file(path))
            except (TraceError, OSError) as error:
                unread.append(str(error))
        if not traces:
            raise TraceError(unread[0] + (f" (and {len(unread) - 1} more)" if unread[1:] else ""))
        traces = one_for_each_rank(traces, asked.recording)
        on = asked.gpu or guess(traces[0].device)
        verdict = judge(traces, work_of(asked.model, asked.tokens, asked.context, on))
    except (TraceError, ValueError, OSError) as error:
        print(f"read_trace: {error}", file=sys.stderr)
        return 1
    verdict.notes.extend(f"Not read: {each}." for each in unread)
    print(json.dumps(as_data(verdict), indent=1) if asked.json else as_text(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
