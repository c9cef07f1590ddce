"""Many items in one session: what grows from the first to the last.

A suite of as many tiny models as asked for is really measured, with the shortest settings there
are. Every so often the session counts its memory, open files, child processes and temporary files.
Flat columns are what is hoped for. Run it with

    python benchmarks/endurance.py [--items N] [--every N]

Needs onnxruntime and a POSIX system.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

COLUMNS = {
    "items": "items",
    "controller_bytes": "controller",
    "open_files": "open files",
    "servers": "processes below",
    "servers_bytes": "their memory",
    "temporary_files": "temporary files",
    "temporary_bytes": "their size",
    "seconds": "s per item",
}

CONFTEST = """
import json
import os
import time
from pathlib import Path

import psutil

NOW = {"items": 0, "since": time.monotonic()}  # what grows here would be counted


def count():
    me = psutil.Process()
    below = me.children(recursive=True)
    files = [p for p in Path(os.environ["TMPDIR"]).rglob("*") if p.is_file()]
    return {
        "items": NOW["items"],
        "controller_bytes": me.memory_full_info().uss,
        "open_files": me.num_fds(),
        "servers": len(below),
        "servers_bytes": sum(p.memory_full_info().uss for p in below),
        "temporary_files": len(files),
        "temporary_bytes": sum(p.stat().st_size for p in files),
        "seconds": time.monotonic() - NOW["since"],
    }


def pytest_runtest_logfinish(nodeid):
    NOW["items"] += 1
    if NOW["items"] % EVERY == 0 or NOW["items"] == 1:
        with open("counts.jsonl", "a") as file:
            file.write(json.dumps(count()) + "\\n")
        NOW["since"] = time.monotonic()
"""

TESTS = """
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper


def inputs(batch, rng):
    return {"x": rng.standard_normal((batch, 16), dtype=np.float32)}


@pytest.mark.parametrize("n", range(ITEMS))
@pytest.mark.portability(runtimes=["onnxruntime.cpu"], targets=["cpu"], seconds=0.01)
def test_it(portability, n):
    weights = np.full((16, 16), n + 1, np.float32)
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, ["b", 16]) for v in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g", [x], [y], [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    portability.check(model, inputs, name=f"m{n}")
"""

INI = """
[pytest]
portability_repeats = 1
portability_missing = warn
filterwarnings = ignore
"""


def run(folder: Path, items: int, every: int) -> tuple[list[dict[str, Any]], str]:
    """Run the suite; what it counted, and its last line.

    Exits with pytest's output where pytest ended before an item did.
    """
    temporary = folder / "tmp"
    temporary.mkdir()
    (folder / "conftest.py").write_text(CONFTEST.replace("EVERY", str(every)), encoding="utf-8")
    (folder / "test_it.py").write_text(TESTS.replace("ITEMS", str(items)), encoding="utf-8")
    (folder / "pytest.ini").write_text(textwrap.dedent(INI).strip(), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--portability"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = folder / "counts.jsonl"
    if not counts.exists():
        sys.exit(done.stdout + done.stderr)
    lines = counts.read_text(encoding="utf-8").splitlines()
    left = [str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()]
    last = done.stdout.strip().rpartition("\n")[2]
    return [json.loads(line) for line in lines], f"{last}; files left: {', '.join(left) or 'none'}"


def rows(counts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table."""
    yield f"| {' | '.join(COLUMNS.values())} |"
    yield "|---" * len(COLUMNS) + "|"
    before = 0
    for count in counts:
        shown = {**count, "seconds": count["seconds"] / max(count["items"] - before, 1)}
        before = count["items"]
        yield f"| {' | '.join(_cell(name, shown[name]) for name in COLUMNS)} |"


def _cell(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.2f}" if name == "seconds" else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=300, help="default 300")
    parser.add_argument("--every", type=int, default=25, help="items between two counts")
    given = parser.parse_args(argv)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, last = run(Path(folder), given.items, given.every)
    print("\n".join(rows(counts)))
    print(f"{last}; {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
