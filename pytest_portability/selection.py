"""What chooses items on the command line: marker names for ``-m``, and one item once more.

Every pytest run imports this module. Which targets exist depends on the runner, and pytest 9 with
``--strict-markers`` refuses a name in ``-m`` that nobody registered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pytest_portability.settings import Declared

VENDORS = ("nvidia", "amd", "intel", "apple", "qualcomm", "huawei", "cpu")
PLATFORMS = ("cuda", "rocm", "xpu", "mps", "directml", "webgpu", "qnn", "cann", "npu")
FAMILIES = ("torch", "onnxruntime", "openvino")

TOO_LATE = (
    "--update-baselines is also defined by a conftest that was found during collection, too late "
    "for pytest to give it the flag. Say which one is meant: --portability --update-baselines for "
    "pytest-portability's; for the project's move the option into the root conftest, or name the "
    "conftest's directory on the command line"
)

_ARCHITECTURE = re.compile(
    r"(?<![\w-])(?:sm_\d+[a-z]?|gfx[0-9a-f]{3,}|xe_\w+|m\d+|x86_64|aarch64|arm64)(?![\w-])"
)


def names(expression: str) -> list[str]:
    """Marker names to register whatever is here: the known ones, and architectures asked for.

    Args:
        expression: of ``-m``.
    """
    asked = _ARCHITECTURE.findall(expression)
    return sorted({*VENDORS, *PLATFORMS, *FAMILIES, *asked})


def again(given: Sequence[tuple[Declared, Any]], nodeid: str, root: str) -> tuple[str, ...]:
    """Arguments that measure an item once more in the same way.

    Args:
        given: settings and what the command line gave for each, None where nothing.
        nodeid: of the item.
        root: the root directory, from where pytest was called.
    """
    options = (
        f"{declared.option}={value}"
        for declared, value in given
        if value is not None and declared.name not in {"report", "require"}
    )
    path, colons, rest = nodeid.partition("::")
    return (*options, (PurePath(root) / path).as_posix() + colons + rest)
