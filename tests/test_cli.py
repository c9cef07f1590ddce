"""``pytest-portability``: the command line beside pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_portability import cli, run
from pytest_portability.errors import UsageError
from pytest_portability.targets import Absent, Target

GPU = Target(
    vendor="amd",
    arch="gfx942",
    product="AMD Instinct MI300X",
    platform="rocm",
    memory_bytes=192 * 2**30,
    handles={"torch": "cuda:0", "onnxruntime.migraphx": ""},
    facts={"rocm": "6.4.1"},
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[run.Discovery]:
    """What is here is the last element of this list."""
    here = [
        run.Discovery(
            targets=(GPU,),
            absents=(
                Absent(name="openvino", reason="not installed: pip install openvino"),
                Absent(name="torch", reason="present but unusable: libhip.so.6: not found"),
            ),
        )
    ]
    monkeypatch.setattr(run, "discover", lambda _servers: here[-1])
    return here


def test_targets_lists_what_is_here_and_what_is_not(
    found: list[run.Discovery], capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole text."""
    del found
    assert cli.main(["targets"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "amd-mi300x  (amd gfx942, rocm, 192 GiB)",
        "  onnxruntime.migraphx",
        "  torch on cuda:0",
        "  rocm: 6.4.1",
        "not here:",
        "  openvino: not installed: pip install openvino",
        "  torch: present but unusable: libhip.so.6: not found",
        "pytest-portability never installs a runtime; install the build for your device",
    ]


def test_targets_as_json(found: list[run.Discovery], capsys: pytest.CaptureFixture[str]) -> None:
    """Identity without device index."""
    del found
    assert cli.main(["targets", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (target,) = shown["targets"]
    assert target["id"] == "amd-mi300x"
    assert target["handles"] == {"torch": "cuda:0", "onnxruntime.migraphx": ""}
    assert "index" not in target
    assert [absent["name"] for absent in shown["absent"]] == ["openvino", "torch"]


def test_no_target_is_exit_code_1(
    found: list[run.Discovery], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked for is not so."""
    found.append(run.Discovery(targets=(), absents=()))
    assert cli.main(["targets"]) == 1
    assert "no target: none of the platform libraries found a device" in capsys.readouterr().out
    assert cli.main(["targets", "--json"]) == 1


def test_an_error_of_ours_is_exit_code_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, without a traceback."""

    def refuses(_servers: object) -> None:
        msg = "no such thing"
        raise UsageError(msg)

    monkeypatch.setattr(run, "discover", refuses)
    assert cli.main(["targets"]) == 2
    assert capsys.readouterr().err == "pytest-portability: no such thing\n"


@pytest.mark.parametrize("args", [[], ["target"], ["targets", "--xml"]])
def test_wrong_usage_is_exit_code_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    assert caught.value.code == 2
    assert "usage: pytest-portability" in capsys.readouterr().err


def test_a_broken_library_is_present_but_unusable(tmp_path: Path) -> None:
    """The real discovery, in a process of its own: never silently absent."""
    for package in ("torch", "openvino", "onnxruntime"):
        (tmp_path / package).mkdir()
        text = f"raise ImportError('lib{package}.so: cannot open shared object file')"
        (tmp_path / package / "__init__.py").write_text(text, encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        "from pytest_portability.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "targets", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    reasons = {absent["name"]: absent["reason"] for absent in json.loads(done.stdout)["absent"]}
    for package in ("torch", "openvino", "onnxruntime"):
        assert "present but unusable: " in reasons[package]
        assert f"lib{package}.so" in reasons[package]


def test_it_is_a_module_too() -> None:
    """``python -m pytest_portability`` for where no script was installed."""
    command = [sys.executable, "-m", "pytest_portability"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0
    assert "usage: pytest-portability" in shown.stdout
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2


def test_output_that_cannot_be_written_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-m", "pytest_portability", "report", "--schema"]
    with full.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "pytest-portability: [Errno 28] No space left on device\n"
