"""A device is held by one process at a time, and by none that is dead."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_portability import device_lock, targets
from pytest_portability.device_lock import held

(CPU,) = targets.merge([targets.cpu_device(runtimes=("fake",), handle="cpu")])

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from pytest_portability import device_lock, targets
(cpu,) = targets.merge([targets.cpu_device(runtimes=("fake",), handle="cpu")])
with device_lock.held(cpu, print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests that run beside these measure, too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def other(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the CPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with other(tmp_path) as process:

        def say(line: str) -> None:
            said.append(line)
            process.kill()

        with held(CPU, say):
            assert process.wait() == -signal.SIGKILL
    assert said == [f"waiting for {CPU.id}: another process measures on it"]


def test_devices_do_not_wait_for_each_other(tmp_path: Path) -> None:
    del tmp_path
    gpus = [
        targets.Target(
            vendor="nvidia", arch="sm_90", product="h200", platform="cuda", index=n, address=address
        )
        for n, address in ((0, {"uuid": "GPU-1"}), (0, {"uuid": "GPU-2"}), (1, {}), (2, {}))
    ]
    assert len({device_lock._path(target) for target in (CPU, *gpus)}) == 5
    nothing: list[str] = []
    with held(CPU, nothing.append), held(gpus[0], nothing.append), held(gpus[1], nothing.append):
        assert nothing == []


def test_of_identical_devices_the_first_free_one_is_taken() -> None:
    def card(number: int, *runtimes: str) -> targets.Target:
        handles = {name: f"{name}:{number}" for name in runtimes}
        return replace(CPU, platform="cuda", address={"uuid": f"{number}"}, handles=handles)

    first = replace(card(0, "a", "b"), twins=(card(1, "b"), card(2, "a")))
    with held(first, pytest.fail, "a") as one, held(first, pytest.fail, "a") as two:
        assert (one.address["uuid"], two.address["uuid"]) == ("0", "2")
        with held(first, pytest.fail, "b") as three:
            assert three.address["uuid"] == "1"
    with held(first, pytest.fail, "a") as again:
        assert again.address["uuid"] == "0"
    strange = replace(first, handles={"a": "a:2"}, twins=(card(2, "a"),))
    with held(strange, pytest.fail, "a") as other_than_it_seems:
        assert other_than_it_seems.address["uuid"] == "2"


def test_where_no_lock_can_be_it_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "file"
    taken.write_text("", encoding="utf-8")
    monkeypatch.setattr(tempfile, "tempdir", str(taken))
    with held(CPU, pytest.fail) as device:
        assert device is CPU
    assert "measured without a lock on the device" in caplog.text
