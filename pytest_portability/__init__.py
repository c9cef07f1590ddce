"""A pytest plugin for performance-portability regression tests of models.

The names below are the public interface beside the fixture, the marker, the options and the hooks.
They are imported on first use: pytest imports this package at every start, and NumPy must not come
with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_portability.attribute import Cause
    from pytest_portability.compare import Comparison
    from pytest_portability.errors import (
        BuildError,
        DoesNotFit,
        PortabilityError,
        PortabilityWarning,
        Unsupported,
        UsageError,
    )
    from pytest_portability.fixture import Portability
    from pytest_portability.kernels import Kernel, KernelPath, KernelUse
    from pytest_portability.pipeline import Result
    from pytest_portability.records import Record
    from pytest_portability.report import Report
    from pytest_portability.runtimes import Build, Observed, Request, Runtime
    from pytest_portability.targets import Absent, Device, Target
    from pytest_portability.verdicts import Verdict

_HOME = {
    "attribute": ("Cause",),
    "compare": ("Comparison",),
    "errors": (
        "BuildError",
        "DoesNotFit",
        "PortabilityError",
        "PortabilityWarning",
        "Unsupported",
        "UsageError",
    ),
    "kernels": ("Kernel", "KernelPath", "KernelUse"),
    "pipeline": ("Result",),
    "fixture": ("Portability",),
    "records": ("Record",),
    "report": ("Report",),
    "runtimes": ("Build", "Observed", "Request", "Runtime"),
    "targets": ("Absent", "Device", "Target"),
    "verdicts": ("Verdict",),
}

__all__ = [
    "Absent",
    "Build",
    "BuildError",
    "Cause",
    "Comparison",
    "Device",
    "DoesNotFit",
    "Kernel",
    "KernelPath",
    "KernelUse",
    "Observed",
    "Portability",
    "PortabilityError",
    "PortabilityWarning",
    "Record",
    "Report",
    "Request",
    "Result",
    "Runtime",
    "Target",
    "Unsupported",
    "UsageError",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"pytest_portability.{module}"), name)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow, and rarely asked for

        return version("pytest-portability")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
