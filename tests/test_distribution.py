"""What is uploaded: the wheel and the source distribution, built and checked."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_portability"

pytest.importorskip("build")
pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is made from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(
    built: tuple[Path, Path],
) -> None:
    """Made from the source distribution, which has to have them, too."""
    names = {n for n in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in n}
    files = {p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert names == {p.relative_to(ROOT).as_posix() for p in files}
    assert "pytest_portability/py.typed" in names


def test_the_metadata_is_what_an_index_takes(built: tuple[Path, Path]) -> None:
    """``twine check``, and what a user reads first."""
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    subprocess.run(command, check=True, capture_output=True)
    wheel = zipfile.ZipFile(built[1])
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    told = HeaderParser().parsestr(wheel.read(name).decode())
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == ">=3.10"
    assert told["License-File"] == "LICENSE"


def test_no_extra_names_a_package_that_others_build_under_another_name(
    built: tuple[Path, Path],
) -> None:
    """``onnxruntime`` would overwrite ``onnxruntime-gpu``, which shares its module."""
    wheel = zipfile.ZipFile(built[1])
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    wanted = HeaderParser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist") or []
    assert not [line for line in wanted if line.startswith("onnxruntime")]
    torch = {line.partition(";")[0].strip() for line in wanted if line.startswith("torch")}
    assert torch == {"torch"}  # any build of it satisfies this


def test_the_source_distribution_can_run_the_tests(built: tuple[Path, Path]) -> None:
    top = built[0].name.removesuffix(".tar.gz")
    with tarfile.open(built[0]) as archive:
        names = archive.getnames()
    for name in ("tox.ini", "pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE"):
        assert f"{top}/{name}" in names
    assert f"{top}/tests/test_distribution.py" in names
    assert f"{top}/benchmarks/overhead.py" in names
