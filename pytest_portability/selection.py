"""What chooses items on the command line: marker names for ``-m``, and one item once more.

Every pytest run imports this module. Which targets exist depends on the runner, and pytest 9 with
``--strict-markers`` refuses a name in ``-m`` that nobody registered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from pytest_portability import settings
from pytest_portability.settings import Declared

VENDORS = ("nvidia", "amd", "intel", "apple", "qualcomm", "huawei", "cpu")
PLATFORMS = ("cuda", "rocm", "xpu", "mps", "directml", "webgpu", "qnn", "cann", "npu")
FAMILIES = ("torch", "onnxruntime", "openvino")

INTERRUPTED, INTERNAL_ERROR = 2, 3
"""Of pytest's exit codes."""

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


def register(config: Any, name: str) -> None:
    """Make a name known to ``-m``."""
    line = f"{name}: portability items of this vendor, platform, architecture or runtime"
    if line not in config.getini("markers"):
        config.addinivalue_line("markers", line)


def asks(expression: str) -> str:
    """The first name that an expression of ``-m`` wants and we register; else empty."""
    words = re.findall(r"[\w-]+", re.sub(r"\bnot\s+[\w-]+", "", expression))
    return next((word for word in words if word in names(expression)), "")


def stopped(session: Any, ran: int) -> str:
    """That a run is over before its end, and why; empty if it is not.

    Args:
        session: pytest's, which ends.
        ran: how many tests did.
    """
    why = session.shouldstop or session.shouldfail
    # With ``-x`` pytest wants to stop after the last test, too, where it fails.
    early = bool(why) and ran < session.testscollected
    if not early and session.exitstatus not in (INTERRUPTED, INTERNAL_ERROR):
        return ""
    told = f" ({why})" if isinstance(why, str) else ""
    return f"the run was stopped before its end{told}: this is a part of what was to run"


def whole(config: Any) -> bool:
    """Whether the command line leaves nothing of the suite out.

    Args:
        config: of pytest. What a plugin leaves out during collection it does not tell.
    """
    narrowing = (
        *("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise"),
        *("override_ini", "continue_on_collection_errors"),
    )
    if any(config.getoption(option, default=None) for option in narrowing):
        return False
    source = config.args_source
    everything = source is source.INVOCATION_DIR and config.invocation_params.dir == config.rootpath
    return everything or source is source.TESTPATHS


def name(node: Any) -> str:
    """The name of a test's model where it gives none."""
    full: str = getattr(node, "originalname", node.name)
    return full.removeprefix("test_")


def marker(node: Any) -> Mapping[str, Any]:
    """The portability marker's arguments, the closest marker winning argument by argument."""
    merged: dict[str, Any] = {}
    for found in node.iter_markers("portability"):
        settings.check_marker(found.args, found.kwargs, f" of {node.nodeid}")
        merged = {**found.kwargs, **merged}
    return merged


def is_meant(test: Any, module: str) -> bool:
    """Whether a test or item asks for a module's fixture ``portability``, maybe through another.

    A project may have a fixture of that name, which hides it or asks for it.
    """
    known: Mapping[str, Sequence[Any]] = getattr(test, "_arg2fixturedefs", None) or getattr(
        getattr(test, "_fixtureinfo", None), "name2fixturedefs", {}
    )
    for definition in reversed(known.get("portability", ())):
        if definition.func.__module__ == module:
            return "portability" in test.fixturenames
        if "portability" not in definition.argnames:
            return False
    return False


def conftests(plugins: Iterable[object]) -> list[ModuleType]:
    """The conftests among the plugins."""
    return [
        plugin
        for plugin in plugins
        if isinstance(plugin, ModuleType)
        and Path(getattr(plugin, "__file__", None) or "").name == "conftest.py"
    ]


def again(
    config: Any, given: Sequence[tuple[Declared, Any]], nodeid: str, path: Path
) -> tuple[str, ...]:
    """Arguments that measure an item once more in the same way.

    Args:
        config: of pytest.
        given: settings and what the command line gave for each, None where nothing.
        nodeid: of the item.
        path: its file. That in the node id is empty where the root directory is elsewhere.
    """
    options = (
        f"{declared.option}={value}"
        for declared, value in given
        if value is not None and declared.name not in {"against", "report", "require"}
    )
    _, colons, rest = nodeid.partition("::")
    here = config.invocation_params.dir
    root = os.path.relpath(config.rootpath, here)
    moved = config.getoption("rootdir") or (config.inipath is None and root != ".")
    rootdir = (f"--rootdir={PurePath(root).as_posix()}",) if moved else ()
    ini = config.getoption("inifilename")
    file = ("-c", str(ini)) if ini else ()
    return (
        *rootdir,
        *file,
        *options,
        PurePath(os.path.relpath(path, here)).as_posix() + colons + rest,
    )
