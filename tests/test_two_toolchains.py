"""Two toolchains on one machine: recorded with the one, checked with the other.

Another Python, in which this plugin and another release of ONNX Runtime are installed, is given by
``PORTABILITY_OTHER_PYTHON``; ``tox run -e two-toolchains`` makes one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx_models import mlp

OTHER = os.environ.get("PORTABILITY_OTHER_PYTHON", "")
pytestmark = pytest.mark.skipif(not OTHER, reason="PORTABILITY_OTHER_PYTHON names no other Python")

TEST = """
import numpy as np
import pytest

@pytest.mark.portability(
    runtimes=["onnxruntime.cpu"], targets=["cpu"], batches=[1, 8], tolerance=0.9, seconds=0.3
)
def test_mlp(portability):
    portability.check(
        "mlp.onnx",
        lambda batch, rng: [rng.standard_normal((batch, 4, 64), dtype=np.float32)],
        options={"onnxruntime": {"intra_op_num_threads": 1}},
    )
"""


def version(python: str) -> str:
    """The ONNX Runtime that a Python has."""
    code = "from importlib.metadata import version; print(version('onnxruntime'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(python: str, folder: Path, *args: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, output and items of a run of pytest by that Python."""
    report = f"--portability-report=json:{folder / 'r.json'}"
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", report, *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    items = json.loads((folder / "r.json").read_text(encoding="utf-8"))["items"]
    return done.returncode, done.stdout + done.stderr, items


def test_a_record_of_one_release_is_held_against_another(tmp_path: Path) -> None:
    """Each run measures what is installed for it, and the report says that it is another one."""
    here, there = version(sys.executable), version(OTHER)
    assert here != there
    onnx.save(mlp(), str(tmp_path / "mlp.onnx"))
    (tmp_path / "test_it.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    code, said, _ = run(sys.executable, tmp_path, "--update-baselines")
    assert code == 0, said
    files = {p: p.read_bytes() for p in (tmp_path / "baselines").rglob("*.toml")}
    code, said, items = run(OTHER, tmp_path, "--portability", "--portability-against=baselines")
    sys.stdout.write(said)
    assert code == 0, said
    assert [item["record"]["toolchain"]["onnxruntime"] for item in items] == [there, there]
    assert {item["verdict"] for item in items} <= {"ok", "improved", "inconclusive"}
    assert [item["baseline_toolchain"]["onnxruntime"] for item in items] == [here, here]
    assert f": other versions than when the records were made: onnxruntime {here} → {there}" in said
    assert "--update-baselines" not in said
    assert {p: p.read_bytes() for p in files} == files
