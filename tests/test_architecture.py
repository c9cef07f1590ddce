"""The shape of the package: who may import whom, how long things are, what is public."""

from __future__ import annotations

import ast
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_portability

PACKAGE = Path(pytest_portability.__file__).parent
NAME = PACKAGE.name

ORDER = (
    "errors",
    "verdicts",
    "settings",
    "recent",
    "answers",
    "children",
    "servers",
    "targets",
    "sensors",
    "kernels",
    "kernel_changes",
    "path_profiles",
    "onnx_graph",
    "models",
    "runtimes",
    "convert",
    "yardstick",
    "samples",
    "measure",
    "outputs",
    "parity",
    "subject",
    "worker",
    "divergence",
    "records",
    "loss",
    "footprint",
    "preconditions",
    "compare",
    "effects",
    "attribute",
    "recording",
    "versions",
    "pipeline",
    "device_lock",
    "report",
    "run",
    "ledger",
    "benchmark_bridge",
    "hookspec",
    "fixture",
    "selection",
    "plugin",
    "cli",
    "__main__",
)
"""Each module, or folder of modules, imports only what stands before it: the flow, from the words
to the commands. Inside a folder no import goes round in a circle."""

LATE = {("settings", "runtimes"), ("settings", "compare")}
"""Imports against the order that are allowed inside a function: every pytest run reads the
settings, so what brings NumPy is imported where a value that needs it is parsed."""

HEAVY = {"torch", "onnx", "onnxruntime", "onnxruntime_ep_openvino", "openvino", "onnxscript"}
"""Packages that take a second or are not installed everywhere: never at the top of a module."""

LIGHT = (
    *("", "errors", "settings", "hookspec"),
    *("plugin", "plugin.flag", "plugin.fleet", "plugin.measuring"),
)
"""Modules that every pytest run may load, and that must not bring NumPy."""

BANNED = {"utils", "util", "common", "base", "helpers", "misc", "core", "tools"}

MOST_LINES = 500
LONGEST_FUNCTION = 60
LONG_FUNCTION = 30
"""Nine functions in ten are at most this long."""


def module_name(file: Path) -> str:
    """Its name below the package, empty for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}

modules = pytest.mark.parametrize("module", FILES, ids=lambda name: name or "__init__")


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: str) -> Iterator[tuple[str, bool]]:
    """What a module imports at run time: dotted name, and whether inside a function."""
    stack: list[tuple[ast.AST, bool]] = [(TREES[module], False)]
    while stack:
        node, inside = stack.pop()
        if _for_types(node):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            # ``from package import x`` may mean a module x of the package.
            for alias in node.names:
                yield f"{node.module}.{alias.name}", inside
        inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]


def own(dotted: str) -> str | None:
    """The module of ours that an imported name stands for, None for another package's."""
    if dotted.partition(".")[0] != NAME:
        return None
    parts = dotted.split(".")[1:]
    while parts and ".".join(parts) not in FILES:
        parts.pop()
    return ".".join(parts)


def functions(module: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, less its docstring: what it says is not what it does."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False) or ""
            code = (node.end_lineno or node.lineno) - node.lineno + 1 - len(text.splitlines())
            yield node.name, code


def stage(module: str) -> str:
    """The entry of ``ORDER`` that a module belongs to."""
    return module.partition(".")[0]


def test_every_module_has_its_place_in_the_order() -> None:
    assert {stage(module) for module in FILES} - {""} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


@modules
def test_imports_go_one_way(module: str) -> None:
    later = ORDER[ORDER.index(stage(module)) + 1 :] if module else ORDER
    for dotted, inside in imports(module):
        imported = own(dotted) or ""
        if not (inside and (module, imported) in LATE):
            assert stage(imported) not in later, f"{module} imports {imported}"


def test_no_import_goes_round_in_a_circle() -> None:
    """A folder may load one of its own modules late, inside a function: a renderer by its name."""
    graph: dict[str, set[str]] = {}
    for module in FILES:
        graph[module] = set()
        for dotted, inside in imports(module):
            imported = own(dotted) or module
            late = (module, imported) in LATE or imported.startswith(f"{module}.")
            if imported != module and not (inside and late):
                graph[module].add(imported)
    graphlib.TopologicalSorter(graph).prepare()


def test_the_settings_import_nothing_but_the_errors_until_a_value_is_parsed() -> None:
    found = {own(dotted) for dotted, inside in imports("settings") if not inside}
    assert found - {None} == {"errors"}


@modules
def test_heavy_packages_are_imported_inside_functions(module: str) -> None:
    top = {dotted.partition(".")[0] for dotted, inside in imports(module) if not inside}
    assert not top & HEAVY
    if module in LIGHT:
        assert "numpy" not in top


@modules
def test_only_the_plugin_imports_pytest(module: str) -> None:
    found = {dotted.partition(".")[0] for dotted, _ in imports(module)}
    assert "_pytest" not in found
    assert "pytest" not in found or stage(module) == "plugin"


@modules
def test_no_module_is_too_long(module: str) -> None:
    lines = FILES[module].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES


@modules
def test_a_module_is_named_for_what_it_owns(module: str) -> None:
    assert not BANNED & set(module.split("."))


@modules
def test_no_function_is_too_long(module: str) -> None:
    assert not [f"{name}: {n} lines" for name, n in functions(module) if n > LONGEST_FUNCTION]


def test_nine_functions_in_ten_are_short() -> None:
    lengths = sorted(n for module in FILES for _, n in functions(module))
    assert lengths[int(len(lengths) * 0.9)] <= LONG_FUNCTION


@pytest.mark.parametrize("module", ["plugin", "hookspec", "cli"])
def test_loading_the_plugin_brings_no_heavy_package(module: str) -> None:
    """Every pytest run loads it, in projects that never use it too."""
    heavy = sorted({*HEAVY, "numpy", "cloudpickle", "psutil", "tomlkit"} - {"onnxscript"})
    unwanted = heavy if module != "cli" else sorted(HEAVY)
    script = f"import sys, {NAME}.{module}; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert pytest_portability.__all__ == PUBLIC
    assert dir(pytest_portability) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves_to_what_is_documented(name: str) -> None:
    found = getattr(pytest_portability, name)
    assert found.__name__ == name
    assert found.__doc__


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'pytest_portability' has no attribute 'nonsense'"):
        importlib.import_module("pytest_portability").nonsense  # noqa: B018 - the access is the test


def test_the_version_is_that_of_the_installed_package() -> None:
    assert pytest_portability.__version__.count(".") >= 2
