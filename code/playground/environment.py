"""Stamp of every measurement and recording: the machine, the versions, and the date."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of Nvidia, of AMD, of Windows below WSL


def environment() -> dict[str, Any]:
    """The stamp of a measurement: where, with what and when it was made."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu_name(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def commit() -> str:
    """What is checked out here; "unknown" in a copy without its history, or without git."""
    git = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(
            git, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def gpu_name() -> str | None:
    """What PyTorch calls its first GPU; it is not imported where there can be none (2 s)."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def cpu_name() -> str:
    """What the processor calls itself, where it can be known."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((x.split(": ")[1] for x in lines if x.startswith("model name")), platform.machine())
