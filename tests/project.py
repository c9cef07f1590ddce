"""A project for pytest to run in a test: its files, and what a run of it gave."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import onnx
import pytest
import runtimes.fake  # noqa: F401 - see above
import scripted  # noqa: F401 - see above
from jsonschema import Draft202012Validator
from onnx_models import mlp

# An inner run in this process must find everything imported: what it imports first is forgotten
# after it, and NumPy cannot be imported twice.
import pytest_portability.cli
import pytest_portability.fixture  # noqa: F401 - see above
from pytest_portability.records import Key, Record, read_all
from pytest_portability.report import document
from pytest_portability.targets import cpu_device, merge

TESTS = Path(__file__).parent

PLAIN = [
    f"-pno:{plugin}"
    for plugin in ("cacheprovider", "hypothesispytest", "anyio", "cov", "benchmark")
]
"""Other plugins of the developer's environment: imported anew by every inner run, they are slow."""

CONFTEST = """
import sys
sys.path[:0] = [{tests!r}] * ({tests!r} not in sys.path)
import numpy as np
import pytest
from pytest_portability import footprint, pipeline, runtimes
from runtimes.fake import FakeRuntime

PACKAGES = ("numpy", "onnx", "onnx.reference", "runtimes.fake")
runtimes.LIBRARIES = {{}}
footprint.FLOOR_BYTES = 2**40  # another process's memory decides nothing here
{scripted}

def pytest_portability_runtimes(config):
    return [{fakes}]
"""

SCRIPTED = """
from scripted import Scripted
pipeline.Pipeline = Scripted
"""

INPUTS = """
import numpy as np
import pytest

def inputs(batch, rng):
    return [rng.standard_normal((batch, 4, 64), dtype=np.float32)]
"""

TEST = """
def test_mlp(portability):
    portability.check("mlp.onnx", inputs)
"""


class Project:
    """Files in a temporary directory, and pytest runs of it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path

    def write(self, files: dict[str, str]) -> None:
        """Write text files; parent directories are made."""
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")

    def make(
        self,
        test: str = TEST,
        *,
        fakes: str = "FakeRuntime(packages=PACKAGES)",
        conftest: str = "",
        ini: str = "",
        real: bool = False,
    ) -> None:
        """Write conftest, test file and ini file.

        Args:
            test: the test file, after the function ``inputs``.
            fakes: runtimes to register.
            conftest: more for the conftest.
            ini: more keys.
            real: whether items are built and measured; else their model's name is their verdict.
        """
        base = CONFTEST.format(
            tests=str(TESTS), fakes=fakes, scripted="" if real else textwrap.dedent(SCRIPTED)
        )
        settings = "portability_seconds = 0.05\n" if real else ""
        if real and "portability_repeats" not in ini:
            settings += "portability_repeats = 1\n"
        if "filterwarnings" not in ini:
            settings += "filterwarnings = default\n"  # not what the outer run makes of warnings
        self.write(
            {
                "conftest.py": base + textwrap.dedent(conftest),
                "test_it.py": INPUTS + textwrap.dedent(test),
                "pytest.ini": f"[pytest]\n{settings}{textwrap.dedent(ini)}",
            }
        )
        if real:
            onnx.save(mlp(), str(self.path / "mlp.onnx"))

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest here, in this process."""
        return self.pytester.runpytest_inprocess(*PLAIN, *args)

    def spawn(self, *args: str) -> pytest.RunResult:
        """Run pytest here, in a process of its own."""
        return self.pytester.runpytest_subprocess(*PLAIN, *args)

    def report(self, *args: str) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
        """Run with a JSON report and give its items too."""
        result = self.run("--portability", "--portability-report=json:report.json", *args)
        return result, self.json()["items"]

    def json(self) -> dict[str, Any]:
        """The JSON report."""
        text = (self.path / "report.json").read_text(encoding="utf-8")
        return validated(json.loads(text))

    @property
    def records(self) -> dict[Key, Record]:
        """What the baselines directory holds."""
        return read_all(self.path / "baselines")[0]

    @property
    def target(self) -> str:
        """Id of this machine's CPU, for which the fake runtime builds."""
        return merge([cpu_device(runtimes=("fake",), handle="cpu")])[0].id

    @property
    def item(self) -> str:
        """The parameter id of the fake runtime's item."""
        return f"{self.target}-fake-native-b1"

    def record(self) -> Record:
        """The only record there is."""
        (found,) = self.records.values()
        return found

    def files(self) -> dict[str, bytes]:
        """The baselines directory, byte by byte."""
        root = self.path / "baselines"
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def validated(report: dict[str, Any]) -> dict[str, Any]:
    """A JSON report that keeps to its schema."""
    Draft202012Validator(json.loads(document.schema())).validate(report)
    return report


def output(result: pytest.RunResult) -> str:
    """Everything a run printed."""
    return f"{result.stdout}\n{result.stderr}"


def flat(result: pytest.RunResult) -> str:
    """Everything a run printed, white space as single blanks: terminals break long lines."""
    return " ".join(output(result).split())
