"""Fixtures of the tests that run pytest inside pytest."""

from __future__ import annotations

import pytest
from project import Project

from pytest_portability import footprint, pipeline, runtimes

pytest_plugins = ["pytester"]


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
