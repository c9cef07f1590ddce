"""Whether the plugin is right on this machine's GPU: one command, no network, under six minutes.

Measures a transformer of MiniLM's shape and a convolutional net, made with fixed seeds, at three
batches and three precisions; holds window time, device events, a hand-written loop and the kernels'
own times against each other; records, seeds faults and checks again, beside a neighbour on the
device too. Prints a table and writes one JSON with every figure, all reports of pytest and the
records (as TOML text). After each part, so that a kill costs that part only.

    python benchmarks/device_check.py --out device.json [--seconds 330] [--dry-run]

Needs PyTorch with a build for the device, and pytest; measures ONNX Runtime where it has a provider
of the device and ``onnx`` is installed. What the plugin itself needs can be brought along as
wheels. On a machine with network, for Python 3.12:

    packages="cloudpickle filelock packaging psutil tomli nvidia-ml-py"
    pip download --only-binary=:all: --no-deps --python-version 3.12 -d wheels $packages

and there, from a checkout:

    python -m pip install --no-index --no-deps --target site wheels/*.whl
    PYTHONPATH=site python benchmarks/device_check.py --out device.json

Exits with 0 where all that ran is as owed, 1 otherwise, 2 where it cannot run at all. ``--dry-run``
does everything on the CPU with tiny models and owes no verdict that speed decides.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)] * (str(HERE) not in sys.path)
if importlib.util.find_spec("pytest_portability") is None:
    sys.path.append(str(HERE.parent))  # a checkout that is not installed

from device_faults import Plan  # noqa: E402 - the paths come first
from device_parts import Budget, Found, Project, Row, carry_out  # noqa: E402

NEEDED = (
    *("numpy", "psutil", "pytest", "torch"),
    *("cloudpickle", "filelock", "packaging", "tomli"),
)
OPTIONAL = {
    "onnx": "no ONNX item, as the plugin reads ONNX models with it",
    "onnxruntime": "no ONNX item",
    "pynvml": "no clocks, throttling or neighbours of an NVIDIA GPU (package nvidia-ml-py)",
}
VERSIONS = (
    *("torch", "triton", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "pytest", "psutil"),
    *("nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-ml-py", "pytest-benchmark", "pytest-xdist"),
)

SMI = "name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,temperature.gpu"
SMI += ",power.draw,power.limit,persistence_mode,compute_mode,mig.mode.current"


class CannotRunError(Exception):
    """Why nothing can be measured here."""


# --- what there is ------------------------------------------------------------------------------


def absent(
    there: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> tuple[list[str], list[str]]:
    """Packages that must be here and are not, and one sentence for each that may be missing."""
    needed = [name for name in NEEDED if not there(name)]
    return needed, [
        f"{name} is not installed: {why}" for name, why in OPTIONAL.items() if not there(name)
    ]


def machine(found: Found) -> Any:
    """Fill in the facts, and give the targets."""
    from pytest_portability import run, sensors
    from pytest_portability.report.json import plain
    from pytest_portability.servers import Servers

    with Servers() as servers:
        seen = run.discover(servers)
    versions = {}
    for name in VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    found.machine |= {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "versions": versions,
        "nvidia_smi": _said("nvidia-smi", f"--query-gpu={SMI}", "--format=csv"),
        "rocm_smi": _said("rocm-smi", "--showproductname", "--showdriverversion"),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("CUDA", "NVIDIA_TF"))},
        "targets": [_kind(plain(target)) for target in seen.targets],
        "absent": plain(list(seen.absents)),
        "sensors": {t.id: plain(sensors.read(t.platform, t.address)) for t in seen.targets},
    }
    return seen.targets


def _kind(target: dict[str, Any]) -> dict[str, Any]:
    """What it is, not which one."""
    return {name: fact for name, fact in target.items() if name not in {"address", "twins"}}


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as exc:
        return f"{type(exc).__name__}: {exc}"
    return done.stdout or done.stderr


def plan_of(targets: Sequence[Any], *, dry_run: bool, onnx: bool) -> Plan:
    """What to measure on the first accelerator that torch reaches, or on the CPU in a dry run.

    Raises:
        CannotRunError: there is no such device.
    """
    usable = [t for t in targets if "torch" in t.handles and (t.platform == "cpu") == dry_run]
    if not usable:
        here = ", ".join(t.id for t in targets) or "nothing"
        msg = f"torch reaches no accelerator here (found: {here}); --dry-run measures on the CPU"
        raise CannotRunError(msg)
    target = usable[0]
    compiling = ("onnxruntime.tensorrt", "onnxruntime.nvtensorrtrtx", "onnxruntime.openvino")
    names = [n for n in target.handles if n.startswith("onnxruntime.") and n not in compiling]
    return Plan(
        target=target.id,
        handle=target.handles["torch"],
        platform=target.platform,
        size="tiny" if dry_run else "full",
        batches=(2,) if dry_run else (1, 8, 64),
        precisions=("native",) if dry_run else ("native", "fp32", "fp16"),
        onnx={name: target.handles[name] for name in names[:1]} if onnx else {},
        seconds=0.05 if dry_run else 0.3,
        repeats=1 if dry_run else 2,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Check this machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("device.json"), help="the JSON to write")
    parser.add_argument("--seconds", type=float, default=330.0, help="for everything (330)")
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU")
    given = parser.parse_args(argv)
    budget = Budget(given.seconds)
    needed, optional = absent()
    if needed:
        print(f"not installed: {', '.join(needed)}; how to bring them along: see {__file__}")
        return 2
    found = Found(out=given.out.resolve(), dry_run=given.dry_run)
    found.machine["missing"] = optional
    targets = machine(found)
    try:
        onnx = not any(name.startswith("onnx") for name in optional)
        plan = plan_of(targets, dry_run=given.dry_run, onnx=onnx)
    except CannotRunError as exc:
        print(exc)
        return 2
    found.plan = asdict(plan)
    found.seconds["machine"] = budget.spent_s
    found.write()
    print(f"{plan.target} as {plan.handle}, {given.seconds:g} s\n")
    print("| part | what | owed | seen | status |\n|---|---|---|---|---|")
    for sentence in optional:
        found.add(Row(part="machine", what=sentence, status="not run: package missing"))
    if onnx and not plan.onnx:
        why = f"not run: onnxruntime has no provider of {plan.target}"
        found.add(Row(part="machine", what="ONNX items", status=why))
    with tempfile.TemporaryDirectory(prefix="device-") as folder:
        carry_out(Project(Path(folder), plan, found), found, budget)
    print(f"\n{budget.spent_s:.0f} s; everything is in {found.out}")
    return found.code


if __name__ == "__main__":
    sys.exit(main())
