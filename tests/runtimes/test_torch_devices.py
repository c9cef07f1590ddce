"""What torch says of machines that are not here, by recorded device properties."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_portability import targets
from pytest_portability.errors import RuntimeUnavailable
from pytest_portability.recording import _platform_facts
from pytest_portability.runtimes import gpu_drivers, library, torch_devices
from pytest_portability.targets import Device, merge


def _raise(error: Exception) -> Any:
    raise error


def _fake(**changed: Any) -> Any:
    """A torch without any accelerator, but for what is given."""
    versions = {"cuda": None, "hip": None, "xpu": None, **changed.pop("version", {})}
    mps = SimpleNamespace(is_built=lambda: False, is_available=lambda: False)
    parts = {
        "__version__": "2.13.0",
        "version": SimpleNamespace(**versions),
        "backends": SimpleNamespace(
            mps=changed.pop("mps_backend", mps),
            cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX512"),
        ),
        "accelerator": SimpleNamespace(current_accelerator=lambda: None, device_count=lambda: 0),
    }
    return SimpleNamespace(**{**parts, **changed})


def _gpus(*properties: Any, init: Any = None) -> Any:
    return SimpleNamespace(
        device_count=lambda: len(properties),
        get_device_properties=lambda i: properties[i],
        init=init or (lambda: None),
    )


def _pci(bus: int) -> dict[str, int]:
    return {"pci_domain_id": 0, "pci_bus_id": bus, "pci_device_id": 0}


H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    total_memory=150_109_880_320,
    uuid="6d8b1c5e-0000-1111-2222-333344445555",
    **_pci(0x1B),
)
MIG = SimpleNamespace(
    name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", major=8, minor=0, total_memory=5_100_273_664
)
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X",
    major=9,
    minor=4,
    gcnArchName="gfx942:sramecc+:xnack-",
    total_memory=206_141_652_992,
    **_pci(0x05),
)
MAX = SimpleNamespace(
    name="Intel(R) Data Center GPU Max 1550",
    device_id=0x0BD5,
    driver_version="1.6.33578+15",
    total_memory=68_719_476_736,
)


def _install(monkeypatch: pytest.MonkeyPatch, torch: Any) -> tuple[list[Device], dict[str, str]]:
    monkeypatch.setitem(sys.modules, "torch", torch)
    devices, absents = library("torch").devices()
    return list(devices), {absent.name: absent.reason for absent in absents}


def test_an_h200_is_an_nvidia_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards of a kind are two devices and one target, before the CPU."""
    torch = _fake(version={"cuda": "13.0"}, cuda=_gpus(H200, H200))
    devices, absents = _install(monkeypatch, torch)
    assert [d.handle for d in devices] == ["cpu", "cuda:0", "cuda:1"]
    first = merge(devices)[0]
    assert first.id == "nvidia-h200"
    assert (first.arch, first.platform, first.memory_bytes) == ("sm_90", "cuda", 150_109_880_320)
    assert first.handles == {"torch": "cuda:0", "torch.compile": "cuda:0"}
    assert first.facts["cuda"] == "13.0"
    assert first.address["pci"] == "0000:1b:00.0"
    assert first.address["uuid"] == "6d8b1c5e-0000-1111-2222-333344445555"
    assert absents["rocm"] == "torch 2.13.0 has no ROCm build"
    assert "cuda" not in absents


def test_a_mig_slice_is_another_target_than_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seventh of a card has a seventh of its speed."""
    devices, _ = _install(monkeypatch, _fake(version={"cuda": "12.8"}, cuda=_gpus(MIG)))
    assert (devices[1].product, devices[1].partition) == ("NVIDIA A100-SXM4-40GB", "MIG 1g.5gb")
    assert merge(devices)[0].id == "nvidia-a100-sxm4-40gb-mig-1g.5gb"


def test_rocm_that_answers_as_cuda_is_an_amd_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle stays ``cuda:0``, that is what torch calls it."""
    devices, absents = _install(monkeypatch, _fake(version={"hip": "7.1"}, cuda=_gpus(MI300X)))
    found = merge(devices)[0]
    assert (found.id, found.arch, found.platform) == ("amd-mi300x", "gfx942", "rocm")
    assert found.handles["torch"] == "cuda:0"
    assert found.facts["hip"] == "7.1"
    assert absents["cuda"] == "torch 2.13.0 has no CUDA build"


def test_amd_partition_modes_come_from_sysfs(tmp_path: Path) -> None:
    """An MI300X in CPX mode is eight small devices; where the files lack there is no partition."""
    folder = tmp_path / "0000:05:00.0"
    folder.mkdir()
    assert torch_devices.amd_partition("0000:05:00.0", tmp_path) == ""
    (folder / "current_compute_partition").write_text("CPX\n")
    (folder / "current_memory_partition").write_text("NPS4\n")
    assert torch_devices.amd_partition("0000:05:00.0", tmp_path) == "CPX/NPS4"
    assert torch_devices.amd_partition("", tmp_path) == ""


@pytest.mark.parametrize("version", ["580.95.05", ""])
def test_the_driver_of_a_gpu_is_recorded(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has no name for it; where nothing has there is none."""
    monkeypatch.setattr(gpu_drivers, "nvidia_driver", lambda: version)
    monkeypatch.setattr(gpu_drivers, "amd_driver", lambda: version)
    driver = {"driver": version} if version else {}
    for torch in (
        _fake(version={"cuda": "13.0"}, cuda=_gpus(H200)),
        _fake(version={"hip": "7.1"}, cuda=_gpus(MI300X)),
    ):
        devices, _ = _install(monkeypatch, torch)
        assert _platform_facts(merge(devices)[0]) == driver


def test_an_intel_max_is_an_xpu_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The architecture comes from the PCI device id."""
    devices, _ = _install(monkeypatch, _fake(version={"xpu": "20250302"}, xpu=_gpus(MAX)))
    found = merge(devices)[0]
    assert (found.id, found.arch, found.platform) == ("intel-max-1550", "xe-hpc", "xpu")
    assert found.facts["driver"] == "1.6.33578+15"


def test_a_mac_is_named_by_its_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has no name for it; the kernel has."""
    monkeypatch.setattr(targets, "sysctl", lambda _name: "Apple M2 Max")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
    torch = _fake(
        mps_backend=SimpleNamespace(is_built=lambda: True, is_available=lambda: True),
        mps=SimpleNamespace(recommended_max_memory=lambda: 51_539_607_552),
    )
    devices, _ = _install(monkeypatch, torch)
    found = merge(devices)[0]
    assert (found.id, found.arch, found.platform) == ("apple-m2-max", "m2", "mps")
    assert (found.handles["torch"], found.memory_bytes) == ("mps", 51_539_607_552)
    assert found.facts["driver"] == "macOS 15.1"


def test_an_accelerator_nobody_knows_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch calls its current accelerator; without inductor."""
    torch = _fake(
        accelerator=SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type="npu"), device_count=lambda: 1
        ),
        npu=SimpleNamespace(device_count=lambda: 1, get_device_name=lambda _i: "Ascend910B2"),
    )
    devices, _ = _install(monkeypatch, torch)
    found = merge(devices)[0]
    assert (found.id, found.platform) == ("huawei-ascend910b2", "npu")
    assert found.handles == {"torch": "npu:0"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("Found no NVIDIA driver on your system. Please check\nmore"),
            "driver missing: RuntimeError: Found no NVIDIA driver on your system. Please check",
        ),
        (RuntimeError("No CUDA GPUs are available"), "no device"),
        (
            RuntimeError("The NVIDIA driver on your system is too old."),
            "present but unusable: RuntimeError: The NVIDIA driver on your system is too old.",
        ),
        (None, "no device"),
    ],
)
def test_a_cuda_build_without_a_device_says_why(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch counts 0 devices in all these cases; only ``init`` tells them apart."""
    init = (lambda: _raise(error)) if error else None
    _, absents = _install(monkeypatch, _fake(version={"cuda": "13.0"}, cuda=_gpus(init=init)))
    assert absents["cuda"] == reason


def test_a_device_that_cannot_be_asked_is_present_but_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is counted, and its properties raise."""
    cuda = SimpleNamespace(
        device_count=lambda: 1,
        get_device_properties=lambda _i: _raise(RuntimeError("CUDA error: system not yet ready")),
    )
    devices, absents = _install(monkeypatch, _fake(version={"cuda": "13.0"}, cuda=cuda))
    assert len(devices) == 1
    assert absents["cuda"] == "present but unusable: RuntimeError: CUDA error: system not yet ready"


def test_torch_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtime, purpose, pip line, original error."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeUnavailable) as caught:
        library("torch").devices()
    assert str(caught.value) == (
        "torch is not installed: runtime 'torch' needs it to find devices; "
        "pip install 'pytest-portability[torch]' "
        "(import of torch halted; None in sys.modules)"
    )


def test_torch_that_does_not_load_is_present_but_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently absent."""

    class Broken:
        def find_spec(self, name: str, *_rest: object) -> None:
            if name == "torch":
                _raise(OSError("libcudart.so.13: cannot open shared object file"))

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(RuntimeUnavailable) as caught:
        library("torch").devices()
    assert str(caught.value) == (
        "torch is present but unusable: OSError: libcudart.so.13: cannot open shared object file"
    )


def test_the_torch_that_is_here_sees_the_cpu() -> None:
    """No fakes: this machine."""
    torch = pytest.importorskip("torch")
    assert isinstance(torch, ModuleType)
    devices, _ = library("torch").devices()
    assert devices[0].handle == "cpu"
    assert devices[0].facts["torch"] == torch.__version__


PRELOADED = """
import torch

asked = []
torch.version.cuda = "13.0"
torch._C._cuda_getDeviceCount = lambda: asked.append("devices") or 0
torch._C._cuda_getCurrentRawStream = lambda index: 0  # imported where CUDA is compiled in

from pytest_portability import children, pipeline, runtimes

for name in ("torch", "torch.compile"):
    for package in pipeline._preload(runtimes.load(name)):
        assert children._import(package) == "", package
assert "torch.utils.cpp_extension" in __import__("sys").modules
print("asked", len(asked), torch.cuda.is_available(), len(asked))
"""


def test_nothing_that_a_fork_server_preloads_asks_cuda_for_its_devices(tmp_path: Path) -> None:
    """Where there is a toolkit, it would poison every child; a torch with CUDA, by its shape."""
    pytest.importorskip("torch")
    home = {"CUDA_HOME": str(tmp_path), "PYTORCH_NVML_BASED_CUDA_CHECK": ""}
    done = subprocess.run(
        [sys.executable, "-c", PRELOADED],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["asked 0 False 1"], done.stdout + done.stderr
