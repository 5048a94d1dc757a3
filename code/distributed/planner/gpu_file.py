"""A GPU of the reader's own, described in a TOML file of a few lines:

name = "GeForce RTX 3090"
tflops = 71           # dense, in the 16-bit format that it trains in, adding in fp32
memory = "24GB"       # or 23.7GiB: what PyTorch calls the total capacity
inside = "16GB"       # to the other GPUs of its host, per second and in one direction
network = "10Gbit"    # all ports of a host together, per second and in one direction
per_host = 4
tflops_fp32 = 35.6    # may be left out, like the next two: peaks for recipes in fp32
tflops_tf32 = 35.6
source = "NVIDIA, Ampere GA102 architecture paper"
"""

import tomllib
from pathlib import Path

from distributed.planner.hardware import Gpu
from distributed.planner.limits import rate, size, within
from distributed.runtime.script import run_script

FIELDS = ("name", "tflops", "memory", "inside", "network", "per_host")
EXAMPLE = "\n".join(line.strip() for line in str(__doc__).partition("\n\n")[2].splitlines())
MORE = ("tflops_fp32", "tflops_tf32", "source")  # may be left out


def read_gpu(path: str) -> Gpu:
    """The GPU that a file describes. Raises ValueError, naming the file and the field."""
    try:
        return gpu_of(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"gpu_file={path!r}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"gpu_file={path!r}: {error}") from None


def gpu_of(text: str) -> Gpu:
    """The GPU that a text in TOML describes. Raises ValueError, naming the field."""
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        way = "write lines like tflops = 71; see --help-all"
        raise ValueError(
            f"it isn't TOML: {str(error)[:1].lower()}{str(error)[1:]}; {way}"
        ) from None
    if missing := [name for name in FIELDS if name not in fields]:
        raise ValueError(f"there is no {' and no '.join(missing)}; it needs {', '.join(FIELDS)}")
    if more := [name for name in fields if name not in (*FIELDS, *MORE)]:
        raise ValueError(f"{more[0]} is not known; it may have {', '.join((*FIELDS, *MORE))}")
    tflops, per_host = fields["tflops"], fields["per_host"]
    peaks = {name: fields.get(name, 0) for name in ("tflops_fp32", "tflops_tf32")}
    for name, value in (("tflops", tflops), ("per_host", per_host), *peaks.items()):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}={value!r}: give a number")
    if per_host != int(per_host):
        raise ValueError(f"per_host={per_host}: give a whole number")
    within("per_host", per_host)
    for peak in (tflops, *filter(None, peaks.values())):
        within("speed", 1e12 * peak)
    memory = size("memory", str(fields["memory"]))
    inside = rate("inside", str(fields["inside"]))
    network = rate("network", str(fields["network"]))
    for name, value in (("gpu_memory", memory), ("inside", inside), ("network", network)):
        within(name, value)
    source = str(fields.get("source", "the reader's own file"))
    return Gpu(
        str(fields["name"]), 1e12 * tflops, memory, inside, network / per_host, int(per_host),
        source, source, fp32=1e12 * peaks["tflops_fp32"], tf32=1e12 * peaks["tflops_tf32"],
    )  # fmt: skip


def main() -> None:
    """The GPU of the first lines of this file."""
    one = gpu_of(EXAMPLE)
    print(f"{one.name}: {one.peak / 1e12:.0f} TFLOP/s, {one.memory / 1e9:.0f} GB")
    assert one.host_network == 1.25e9


if __name__ == "__main__":
    run_script(main)
