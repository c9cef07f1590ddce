"""What bad input gets, through the public way, with the real ONNX Runtime on the CPU.

Each is that item's verdict with a clear text; the next item runs, and nothing is lost.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import mlp
from project import Project, flat, output

pytest.importorskip("onnxruntime")

REAL = """
runtimes.LIBRARIES = {"onnxruntime": "pytest_portability.runtimes.onnxruntime"}

def pytest_portability_runtimes(config):
    return []
"""

HEAD = """
import os
import signal
import subprocess
import threading

pytestmark = pytest.mark.portability(
    runtimes=["onnxruntime.cpu"], targets=["cpu"], batches=[2], tolerance=0.9
)
"""

GOOD = """
def test_good(portability):
    portability.check("mlp.onnx", inputs)
"""


class Hostile:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def write_models(project: Project) -> None:
    """Models that cannot be used, beside the good one."""
    good = mlp().SerializeToString()
    (project.path / "truncated.onnx").write_bytes(good[: len(good) // 2])
    (project.path / "text.onnx").write_text("this is a text, not a model", encoding="utf-8")
    (project.path / "empty.onnx").write_bytes(b"")
    future = mlp()
    future.opset_import[0].version = 99
    (project.path / "future.onnx").write_bytes(future.SerializeToString())
    nan = mlp()
    for tensor in nan.graph.initializer:
        shape = tuple(tensor.dims)
        array = np.full(shape, np.nan, dtype=np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    (project.path / "nan.onnx").write_bytes(nan.SerializeToString())
    hostile = pickle.dumps(Hostile(project.path / "it_ran"))
    (project.path / "weights.pkl").write_bytes(hostile)
    with zipfile.ZipFile(project.path / "weights.pt", "w") as archive:  # as torch.save does
        archive.writestr("weights/data.pkl", hostile)
        archive.writestr("weights/version", "3\n")


CASES: dict[str, tuple[str, str, list[str]]] = {
    "missing file": (
        "portability.check('nowhere.onnx', inputs)",
        "",
        ["nowhere.onnx", "no such"],
    ),
    "truncated file": ("portability.check('truncated.onnx', inputs)", "", ["truncated.onnx"]),
    "not a model": ("portability.check('text.onnx', inputs)", "", ["text.onnx"]),
    "empty file": ("portability.check('empty.onnx', inputs)", "", ["empty.onnx"]),
    "pickle": (
        "portability.check('weights.pkl', inputs)",
        "",
        ["weights.pkl", "not an ONNX file"],
    ),
    "torch checkpoint": (
        "portability.check('weights.pt', inputs)",
        "",
        ["weights.pt", "not an ONNX file"],
    ),
    "op-set too new": ("portability.check('future.onnx', inputs)", "", ["99"]),
    "unknown input": (
        "portability.check('mlp.onnx', lambda b, rng: {'z': inputs(b, rng)[0]})",
        "",
        ["'z'", "x"],
    ),
    "wrong shape": (
        "portability.check('mlp.onnx', lambda b, rng: [np.zeros((b, 4, 5), np.float32)])",
        "",
        ["5", "64"],
    ),
    "wrong dtype": (
        "portability.check('mlp.onnx', lambda b, rng: [np.zeros((b, 4, 64), np.int64)])",
        "",
        ["int64", "float32"],
    ),
    "inputs raise": (
        "portability.check('mlp.onnx', bad_inputs)",
        "def bad_inputs(batch, rng):\n    raise KeyError('no such sentence')\n",
        ["inputs(batch=2, rng) raised KeyError: 'no such sentence'", "in bad_inputs"],
    ),
    "ready arrays of another batch": (
        "portability.check('mlp.onnx', [np.zeros((3, 4, 64), np.float32)])",
        "",
        ["3", "2"],
    ),
    "unknown option": (
        "portability.check('mlp.onnx', inputs, options={'onnxruntime': {'thread': 1}})",
        "",
        ["'thread'", "valid"],
    ),
    "metric raises": (
        "portability.check('mlp.onnx', inputs, metric=bad_metric)",
        "def bad_metric(predict):\n    raise ZeroDivisionError('no samples')\n",
        ["metric raised ZeroDivisionError: no samples (in bad_metric, line "],
    ),
    "metric is no number": (
        "portability.check('mlp.onnx', inputs, metric=lambda predict: 'good')",
        "",
        ["metric gave 'good'; expected a number or a mapping from name to number"],
    ),
    "metric dies": (
        "portability.check('mlp.onnx', inputs, metric=dies)",
        "def dies(predict):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
        ["the child was killed by SIGSEGV while computing the task metric"],
    ),
    "metric ends the process": (
        "portability.check('mlp.onnx', inputs, metric=lambda predict: os._exit(7))",
        "",
        ["exit code 7 and no result while computing the task metric"],
    ),
    "metric hangs": (
        "portability.check('mlp.onnx', inputs, metric=lambda p: threading.Event().wait())",
        "",
        ["time limit of 5 s while computing the task metric"],
    ),
    "reference of another shape": (
        "portability.check('mlp.onnx', inputs, reference=[np.zeros((2, 3), np.float32)])",
        "",
        ["shape"],
    ),
    "model cannot travel": (
        "portability.check(threading.Lock(), inputs)",
        "",
        ["cannot be sent to a child process"],
    ),
    "model is no model": ("portability.check(42, inputs)", "", ["int"]),
    "factory raises": (
        "portability.check(bad_factory, inputs)",
        "def bad_factory():\n    raise OSError('the mirror is down')\n",
        ["the factory bad_factory raised OSError: the mirror is down (in bad_factory, line "],
    ),
    "metric is NaN": (
        "portability.check('mlp.onnx', inputs, metric=lambda predict: {'acc': float('nan')})",
        "",
        ["metric 'acc' is nan; a task metric must be finite"],
    ),
    "inputs end the process": (
        "portability.check('mlp.onnx', ends)",
        "def ends(batch, rng): raise SystemExit('no data set')",
        ["inputs(batch=2, rng) raised SystemExit: no data set (in ends, line "],
    ),
    "reference ends the process": (
        "portability.check('mlp.onnx', inputs, reference=gone)",
        "def gone(inputs): raise SystemExit(3)",
        ["reference raised SystemExit: 3 (in gone, line "],
    ),
    "reference gives nothing": (
        "portability.check('mlp.onnx', inputs, reference=lambda inputs: None)",
        "",
        ["reference= gives no outputs"],
    ),
}

VERDICTS = {"reference of another shape": "parity"}

HARMLESS = {
    "floods its output": "os.write(1, b'x' * 10**7)",
    "leaves a thread": "threading.Thread(target=threading.Event().wait).start()",
    "leaves a grandchild": "subprocess.Popen(['sleep', '1000'])",
    "changes global state": "np.random.seed(0); os.environ.clear(); os.chdir('/')",
}
"""What a metric may do beside its work: its item is measured, and so is the next."""


def test_bad_input_is_its_items_verdict(project: Project) -> None:
    """All in one run, so that each one's next item is seen to run."""
    tests = HEAD + GOOD
    for number, (call, extra, _) in enumerate(CASES.values()):
        tests += f"\n{extra}\ndef test_{number:02}(portability):\n    {call}\n"
    for number, code in enumerate(HARMLESS.values()):
        tests += f"\ndef odd_{number}(predict):\n    {code}\n    return 1.0\n"
        call = f"portability.check('mlp.onnx', inputs, metric=odd_{number})"
        tests += f"\ndef test_odd_{number}(portability):\n    {call}\n"
    tests += "\ndef test_last(portability):\n    portability.check('mlp.onnx', inputs)\n"
    project.make(
        tests,
        conftest=REAL,
        real=True,
        ini="portability_time_limit = 5\nportability_missing = warn\n",
    )
    write_models(project)
    result, items = project.report()
    assert "Traceback (most recent call last)" not in "\n".join(
        line for line in result.outlines if not line.startswith(" ")
    )
    assert "INTERNALERROR" not in output(result)
    found = {item["nodeid"].partition("[")[0].partition("::test_")[2]: item for item in items}
    assert found["good"]["verdict"] == found["last"]["verdict"] == "missing"
    wrong = []
    for number, (name, (_, _, words)) in enumerate(CASES.items()):
        item = found[f"{number:02}"]
        if item["verdict"] != VERDICTS.get(name, "error"):
            wrong.append(f"{name}: {item['verdict']}: {item['reason']}")
        missing = [word for word in words if word not in item["reason"]]
        if missing:
            wrong.append(f"{name}: {missing} not in {item['reason']!r}")
    for number, name in enumerate(HARMLESS):
        item = found[f"odd_{number}"]
        if item["verdict"] != "missing":
            wrong.append(f"a metric that {name}: {item['verdict']}: {item['reason']}")
    assert not wrong, "\n".join(wrong)
    assert not (project.path / "it_ran").exists(), "a pickle was loaded that is no model"
    pickle.loads((project.path / "weights.pkl").read_bytes())
    assert (project.path / "it_ran").exists()  # it would have been seen
    fine = 2 + len(HARMLESS)
    result.assert_outcomes(passed=fine, failed=len(CASES), warnings=fine)


def test_output_that_is_not_finite_fails_parity_with_the_user_s_own_reference(
    project: Project,
) -> None:
    """NaN is never ``close enough``."""
    project.make(
        HEAD
        + """
def test_nan(portability):
    portability.check("nan.onnx", inputs, reference=lambda inputs: {"y": inputs["x"]})
"""
        + GOOD,
        conftest=REAL,
        real=True,
        ini="portability_missing = warn",
    )
    write_models(project)
    result, items = project.report()
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    assert items[0]["verdict"] == "parity"
    assert "finite" in items[0]["reason"] or "NaN" in items[0]["reason"]
    assert items[0]["record"]["parity"]["error_rel"] is None or items[0]["record"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema = 1", "schema = ", ["line "]),
        ("schema = 1", "schema = 99", ["newer release"]),
        ("repeats = 4", "repeats = 4\nsurprise = true", ["surprise", "unknown; known here: "]),
        ("repeats = 4", "repeats = 'four'", ["repeats", "must be an integer", "four"]),
        ("TARGET", "cpu-other-4c", ["is for another target"]),
    ],
    ids=["broken", "newer schema", "unknown key", "wrong type", "another product"],
)
def test_a_baseline_that_cannot_be_used_fails_its_item(
    project: Project, old: str, new: str, words: list[str]
) -> None:
    """It names the file, and the next item runs."""
    project.make(
        """
        @pytest.mark.parametrize("name", ["missing_a", "missing_b"])
        def test_it(portability, name):
            portability.check("m.onnx", inputs, name=name)
        """
    )
    path = project.path / "baselines" / "missing_a" / f"{project.target}.toml"
    project.run("--update-baselines", "-k", "missing_a")
    text = path.read_text(encoding="utf-8").replace(old.replace("TARGET", project.target), new)
    path.write_text(text, encoding="utf-8")
    result, items = project.report("--portability-missing=warn")
    result.assert_outcomes(passed=1, failed=1, warnings=1)
    assert [item["verdict"] for item in items] == ["error", "missing"]
    for word in (path.name, *words):
        assert word in items[0]["reason"]
        assert word in flat(result)
    assert "Traceback" not in output(result)
    assert path.read_text(encoding="utf-8") == text
