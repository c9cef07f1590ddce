"""Fixtures of the tests that run pytest inside pytest."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from judged import Judged, judge
from project import Project

from pytest_portability import footprint, pipeline, runtimes

pytest_plugins = ["pytester"]

if WORKER := os.environ.get("PYTEST_XDIST_WORKER"):
    # Locks on devices are there, too: tests that run side by side judge no speed, and need not wait
    # for each other.
    USER = os.getuid() if hasattr(os, "getuid") else ""
    OWN = Path(tempfile.gettempdir()) / f"portability-{USER}-{WORKER}"
    OWN.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(OWN)
    tempfile.tempdir = None


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with one test of a tiny model and the fake runtime."""
    # Its conftest overwrites these in this very process: have them restored.
    monkeypatch.setattr(footprint, "FLOOR_BYTES", footprint.FLOOR_BYTES)
    monkeypatch.setattr(pipeline, "Pipeline", pipeline.Pipeline)
    monkeypatch.setattr(runtimes, "LIBRARIES", runtimes.LIBRARIES)
    # What decides how the inner run looks must not come from the outer one.
    for name in ("PYTEST_ADDOPTS", "NO_COLOR", "PY_COLORS", "FORCE_COLOR", "CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """What the bad builds of the cases of a module's name are called; made once for its tests."""
    module = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    return judge(tmp_path_factory.mktemp(module), module, again=2)
