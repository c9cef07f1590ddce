"""Fixtures of the adapters' tests."""

from __future__ import annotations

import pytest

from runtimes.intel_vendor import pretend_intel_cpu


@pytest.fixture(scope="session", autouse=True)
def _openvino_provider_everywhere() -> None:
    """Before any plugin is registered: plugins choose their devices when they are."""
    pretend_intel_cpu()
