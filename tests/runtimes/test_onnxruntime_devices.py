"""ONNX Runtime's devices: listed, compiled in, brought by plugins, or not here and why."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_models
import pytest

from pytest_portability import models, targets
from pytest_portability.errors import RuntimeUnavailable
from pytest_portability.runtimes import Request, cuda_driver, gpu_drivers, loaded_libraries
from pytest_portability.runtimes import onnxruntime as adapter
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes import onnxruntime_providers as providers

pytest.importorskip("onnxruntime")


def ep_device(
    ep: str,
    kind: str,
    vendor: tuple[int, str],
    hardware: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
) -> Any:
    """An object shaped like ``OrtEpDevice``."""
    device = SimpleNamespace(
        type=f"OrtHardwareDeviceType.{kind}",
        vendor=vendor[1],
        vendor_id=vendor[0],
        device_id=0,
        metadata=hardware or {},
    )
    return SimpleNamespace(
        ep_name=ep, ep_vendor="", ep_metadata=metadata or {}, ep_options={}, device=device
    )


def hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset what hides cards from HIP."""
    for name in ("ROCR", "HIP", "CUDA"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)


NVIDIA, AMD, INTEL = (0x10DE, "NVIDIA"), (0x1002, "AMD"), (0x8086, "Intel")


class TestDevices:
    """``OrtEpDevice`` objects and compiled-in providers become devices."""

    @pytest.mark.parametrize(
        ("entry", "runtime", "facts"),
        [
            (
                ep_device("CUDAExecutionProvider", "GPU", NVIDIA, {"pci_bus_id": "0000:17:00.0"}),
                "onnxruntime.cuda",
                ("nvidia", "cuda", "gpu:0", ""),
            ),
            (
                ep_device(
                    "CUDAExecutionProvider",
                    "GPU",
                    NVIDIA,
                    metadata={"cuda_device_name": "NVIDIA H200", "cuda_compute_capability": "9.0"},
                ),
                "onnxruntime.cuda",
                ("nvidia", "cuda", "gpu:0", "NVIDIA H200"),
            ),
            (
                ep_device("MIGraphXExecutionProvider", "GPU", AMD),
                "onnxruntime.migraphx",
                ("amd", "rocm", "gpu:0", ""),
            ),
            (
                ep_device(
                    "DmlExecutionProvider",
                    "GPU",
                    NVIDIA,
                    {"Description": "NVIDIA GeForce RTX 4090"},
                ),
                "onnxruntime.dml",
                ("nvidia", "directml", "gpu:0", "NVIDIA GeForce RTX 4090"),
            ),
            (
                ep_device("CoreMLExecutionProvider", "NPU", (0x106B, "Apple")),
                "onnxruntime.coreml",
                ("apple", "mps", "npu:0", "Apple M4 Pro"),
            ),
            (
                ep_device("QNNExecutionProvider", "NPU", (0x4D4F4351, "Qualcomm")),
                "onnxruntime.qnn",
                ("qualcomm", "qnn", "npu:0", ""),
            ),
            (
                ep_device(
                    "OpenVINOExecutionProvider",
                    "GPU",
                    INTEL,
                    metadata={"FULL_DEVICE_NAME": "Intel(R) Arc(TM) B580", "version": "1.8.1"},
                ),
                "onnxruntime.openvino",
                ("intel", "xpu", "gpu:0", "Intel(R) Arc(TM) B580"),
            ),
            (
                ep_device("BrandNewExecutionProvider", "GPU", (0x1ABC, "Acme")),
                "onnxruntime.brandnew",
                ("acme", "brandnew", "gpu:0", ""),
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_listed_device_has_vendor_platform_and_handle(
        self,
        entry: Any,
        runtime: str,
        facts: tuple[str, str, str, str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The product is empty where ONNX Runtime has no name, to be joined with another view."""
        monkeypatch.setattr(targets, "sysctl", lambda _name: "Apple M4 Pro")
        ((ep, handle, found),) = providers.offered([entry])
        device = providers.device_of(ep, handle, found)
        assert device.runtimes == (runtime,)
        assert (device.vendor, device.platform, device.handle, device.product) == facts

    def test_devices_are_numbered_per_provider_and_kind(self) -> None:
        """Two cards and a neural unit."""
        entries = [
            ep_device("CUDAExecutionProvider", "GPU", NVIDIA),
            ep_device("OpenVINOExecutionProvider", "CPU", INTEL),
            ep_device("CUDAExecutionProvider", "GPU", NVIDIA),
            ep_device("OpenVINOExecutionProvider", "NPU", INTEL),
        ]
        found = providers.offered(entries)
        assert [handle for _, handle, _ in found] == ["gpu:0", "cpu", "gpu:1", "npu:0"]
        assert providers.device_of(*found[2]).index == 1
        assert providers.device_of(*found[3]).platform == "npu"

    def test_virtual_and_collective_devices_are_left_out(self) -> None:
        """They are no hardware of this machine."""
        entries = [
            ep_device("OpenVINOExecutionProvider", "NPU", INTEL, {"is_virtual": "1"}),
            ep_device(
                "OpenVINOExecutionProvider.AUTO", "CPU", INTEL, metadata={"ov_meta_device": "AUTO"}
            ),
        ]
        assert providers.offered(entries) == []

    def test_every_provider_on_the_cpu_sees_the_same_device(self) -> None:
        """So that they join into one target."""
        entry = ep_device("OpenVINOExecutionProvider", "CPU", INTEL)
        one = providers.device_of("OpenVINOExecutionProvider", "cpu", entry)
        two = providers.device_of("CPUExecutionProvider", "cpu", entry)
        assert (one.vendor, one.product) == ("cpu", two.product)

    def test_nvidia_smi_fills_in_what_a_compiled_in_provider_cannot_tell(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbered as CUDA shows the cards to this process."""
        h200 = ["NVIDIA H200", "9.0", "143771", "580.95.05", "00000000:17:00.0", "GPU-aa"]
        a100 = ["NVIDIA A100-SXM4-80GB", "8.0", "81920", "580.95.05", "00000000:65:00.0", "GPU-bb"]
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", lambda: [h200, a100])
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        available = ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
        devices, absents = providers.built_in(available, {"TensorrtExecutionProvider"})
        assert absents == []
        assert [(d.handle, d.arch, d.product) for d in devices] == [
            ("gpu:0", "sm_90", "NVIDIA H200"),
            ("gpu:1", "sm_80", "NVIDIA A100-SXM4-80GB"),
        ]
        assert devices[0].memory_bytes == 143771 * 2**20
        assert devices[0].facts == {"driver": "580.95.05"}
        assert devices[0].address == {"pci": "00000000:17:00.0", "uuid": "GPU-aa"}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        devices, _ = providers.built_in(available, {"TensorrtExecutionProvider"})
        assert [(d.handle, d.product) for d in devices] == [("gpu:0", "NVIDIA A100-SXM4-80GB")]

    def test_cards_are_numbered_as_the_driver_does_where_it_tells(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fastest first, which is not the first on the bus."""
        a100 = ["NVIDIA A100-SXM4-80GB", "8.0", "81920", "580.95.05", "00000000:17:00.0", "GPU-aa"]
        h200 = ["NVIDIA H200", "9.0", "143771", "580.95.05", "00000000:B5:00.0", "GPU-bb"]
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", lambda: [a100, h200])
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        told: tuple[str, ...] = ("0000:b5:00.0", "0000:17:00.0")
        monkeypatch.setattr(cuda_driver, "addresses", lambda: told)
        devices, _ = providers.built_in(["CUDAExecutionProvider"], set())
        assert [(d.handle, d.product) for d in devices] == [
            ("gpu:0", "NVIDIA H200"),
            ("gpu:1", "NVIDIA A100-SXM4-80GB"),
        ]
        told = ("0000:99:00.0",)
        devices, _ = providers.built_in(["CUDAExecutionProvider"], set())
        assert [d.product for d in devices] == ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]

    def test_a_slice_of_a_card_is_found_by_its_card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """``nvidia-smi`` has a row of the card only, and the environment names the slice."""
        card = ["NVIDIA H200", "9.0", "143771", "580.95.05", "00000000:17:00.0", "GPU-aa"]
        other = ["NVIDIA L4", "8.9", "23034", "580.95.05", "00000000:05:00.0", "GPU-bb"]
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", lambda: [other, card])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cc")
        monkeypatch.setattr(cuda_driver, "addresses", lambda: ("0000:17:00.0",))
        ((device,), _) = providers.built_in(["CUDAExecutionProvider"], set())
        assert (device.handle, device.product) == ("gpu:0", "NVIDIA H200")

    def test_a_card_that_is_not_there_ends_the_visible_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As CUDA reads it: what comes after ``-1`` is hidden."""
        a100 = ["NVIDIA A100-SXM4-80GB", "8.0", "81920", "580.95.05", "00000000:17:00.0", "GPU-aa"]
        h200 = ["NVIDIA H200", "9.0", "143771", "580.95.05", "00000000:B5:00.0", "GPU-bb"]
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", lambda: [a100, h200])
        monkeypatch.setattr(cuda_driver, "addresses", tuple)
        for text, products in (("1,-1,0", ["NVIDIA H200"]), ("GPU-bb", ["NVIDIA H200"]), ("", [])):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
            devices, _ = providers.built_in(["CUDAExecutionProvider"], set())
            assert [d.product for d in devices] == products

    def test_openvino_that_is_built_in_is_the_cpu(self) -> None:
        """It lists no devices and runs on the CPU unless told otherwise: no GPU's speed."""
        ((device,), absents) = providers.built_in(["OpenVINOExecutionProvider"], set())
        cpu = targets.cpu_device(runtimes=("onnxruntime.openvino",), handle="cpu")
        assert (device, absents) == (cpu, [])

    def test_a_mac_without_torch_is_named_by_its_chip(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the name torch's view of it has: an M1's record is not an M4's, with torch or not."""
        monkeypatch.setattr(targets, "sysctl", lambda _name: "Apple M4 Pro")
        monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
        devices, _ = providers.built_in(["CoreMLExecutionProvider"], set())
        (found,) = targets.merge(devices)
        assert (found.id, found.arch, found.platform) == ("apple-m4-pro", "m4", "mps")
        assert found.facts == {"driver": "macOS 15.1"}

    def test_neural_units_are_no_gpus(self) -> None:
        """Of a vendor whose GPU has the same number and, to ONNX Runtime, no name either."""
        qualcomm = (0x4D4F4351, "Qualcomm")
        entries = [
            ep_device("QNNExecutionProvider", "GPU", qualcomm),
            ep_device("QNNExecutionProvider", "NPU", qualcomm),
        ]
        listed = [providers.device_of(*found) for found in providers.offered(entries)]
        built_in, _ = providers.built_in(
            ["VitisAIExecutionProvider", "QNNExecutionProvider"], set()
        )
        assert [(d.handle, d.arch) for d in built_in] == [("npu:0", "npu"), ("npu:0", "npu")]
        found = targets.merge([*listed, *built_in])
        assert [(t.id, t.handles) for t in found] == [
            ("amd-npu", {"onnxruntime.vitisai": "npu:0"}),
            ("qualcomm", {"onnxruntime.qnn": "gpu:0"}),
            ("qualcomm-npu", {"onnxruntime.qnn": "npu:0"}),
        ]

    def test_huawei_s_units_join_what_torch_names(self) -> None:
        """To both they are neural units, though CANN's handle is ONNX Runtime's own."""
        devices, _ = providers.built_in(["CANNExecutionProvider"], set())
        named = targets.Device(
            runtimes=("torch",),
            handle="npu:0",
            vendor="huawei",
            arch="npu",
            product="Ascend910B2",
            platform="npu",
        )
        (found,) = targets.merge([*devices, named])
        assert found.id == "huawei-ascend910b2"
        assert found.handles == {"onnxruntime.cann": "npu:0", "torch": "npu:0"}

    def test_the_kernel_driver_tells_amd_architectures(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MI300X is gfx942; the host's CPU is a node without a version."""
        nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
        for number, text in enumerate(
            [
                "cpu_cores_count 96\ngfx_target_version 0\n",
                "gfx_target_version 90402\ndomain 0\nlocation_id 1280\n",
                "gfx_target_version 90010\nlocation_id 1536\n",
            ]
        ):
            folder = nodes / str(number)
            folder.mkdir(parents=True)
            (folder / "properties").write_text(text)
        card = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
        card.mkdir(parents=True)
        (card / "product_name").write_text("AMD Instinct MI300X OAM\n")
        hide_nothing(monkeypatch)
        devices, _ = providers.built_in(["MIGraphXExecutionProvider"], set(), tmp_path)
        assert [(d.handle, d.arch, d.product) for d in devices] == [
            ("gpu:0", "gfx942", "AMD Instinct MI300X OAM"),
            ("gpu:1", "gfx90a", ""),
        ]

    @pytest.mark.parametrize(
        ("variables", "buses"),
        [
            ({}, [1, 2, 3, 4]),
            ({"ROCR": "2,1"}, [3, 2]),
            ({"ROCR": "3, GPU-00000000DEADBEEF"}, [4, 2]),
            ({"ROCR": "GPU-00000000dead,gpu-1"}, [2, 3]),
            ({"ROCR": "GPU-0"}, []),
            ({"ROCR": ""}, []),
            ({"ROCR": "0,7,1"}, [1]),
            ({"ROCR": "0,0,1"}, [1]),
            ({"HIP": "3,-1,0"}, [4]),
            ({"HIP": "GPU-1"}, [3]),
            ({"HIP": ""}, [1, 2, 3, 4]),
            ({"ROCR": "1,2,3", "HIP": "2,0"}, [4, 2]),
            ({"CUDA": "1"}, [2]),
            ({"HIP": "0", "CUDA": "1"}, [1]),
        ],
    )
    def test_amd_cards_are_those_that_hip_shows_numbered_as_it_does(
        self,
        variables: dict[str, str],
        buses: list[int],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The kernel lists all; ROCr hides some of them, and HIP some of what is left."""
        unique = (0xBEEF, 0xDEADBEEF, 0x1000000000000001, 0)
        for place, number in enumerate(unique):
            folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{place + 1}"
            folder.mkdir(parents=True)
            text = f"gfx_target_version 90402\nlocation_id {place + 1 << 8}\nunique_id {number}\n"
            (folder / "properties").write_text(text)
        module = tmp_path / "sys/module/amdgpu/version"
        module.parent.mkdir(parents=True)
        module.write_text("6.10.5\n")
        hide_nothing(monkeypatch)
        for name, value in variables.items():
            monkeypatch.setenv(f"{name}_VISIBLE_DEVICES", value)
        devices, _ = providers.built_in(["MIGraphXExecutionProvider"], set(), tmp_path)
        assert [d.address["pci"] for d in devices] == [f"0000:0{bus}:00.0" for bus in buses]
        assert [(d.handle, d.index) for d in devices] == [
            (f"gpu:{n}", n) for n in range(len(buses))
        ]
        assert all(d.facts == {"driver": "6.10.5"} for d in devices)

    def test_a_compiled_in_provider_without_hardware_is_absent_with_its_reason(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """``get_available_providers()`` lists what was compiled in, not what works."""
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", list)
        available = ["CUDAExecutionProvider", "ROCMExecutionProvider", "AzureExecutionProvider"]
        devices, absents = providers.built_in(available, set(), tmp_path)
        assert devices == []
        assert {a.name: a.reason for a in absents} == {
            "onnxruntime.cuda": "no device: onnxruntime has CUDAExecutionProvider, "
            "and no nvidia GPU answered",
            "onnxruntime.rocm": "no device: onnxruntime has ROCMExecutionProvider, "
            "and no amd GPU answered",
        }

    @pytest.mark.parametrize("version", [b"99", b""])
    def test_tensorrt_that_is_not_here_is_unusable_in_a_wheel_that_could_use_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: bytes
    ) -> None:
        """By the name that the provider's library asks for; where it tells none, it is believed."""
        card = ["NVIDIA H200", "9.0", "143771", "580.95.05", "00000000:17:00.0", "GPU-aa"]
        monkeypatch.setattr(gpu_drivers, "_nvidia_smi", lambda: [card])
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        file = tmp_path / "libonnxruntime_providers_tensorrt.so"
        file.write_bytes(b"\x7fELF\0libnvinfer.so." + version + b"\0libc.so.6\0")
        available = ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
        devices, absents = providers.built_in(available, set(), folder=tmp_path)
        found = [runtime for device in devices for runtime in device.runtimes]
        if not version:
            assert (found, absents) == (["onnxruntime.tensorrt", "onnxruntime.cuda"], [])
            return
        assert found == ["onnxruntime.cuda"]
        (absent,) = absents
        assert absent.name == "onnxruntime.tensorrt"
        assert absent.reason.startswith("present but unusable: libnvinfer.so.99: cannot open")

    def test_this_machine_s_cpu_is_found(self) -> None:
        """With the name every library uses for it."""
        devices, _ = adapter.LIBRARY.devices()
        cpu = next(device for device in devices if "onnxruntime.cpu" in device.runtimes)
        assert (cpu.handle, cpu.vendor, cpu.platform) == ("cpu", "cpu", "cpu")


class TestCuda:
    """What a build for CUDA does when it is imported, and what it has to be told."""

    def test_it_is_not_imported_before_children_are_forked(self) -> None:
        """It may count the devices: see ``_register_bundled_cuda_plugin_ep`` of the package."""
        for short in ("cuda", "tensorrt"):
            assert "onnxruntime" not in adapter.runtime(f"onnxruntime.{short}").packages
        for short in ("cpu", "openvino"):
            assert "onnxruntime" in adapter.runtime(f"onnxruntime.{short}").packages

    def test_it_is_told_to_load_cuda_s_libraries_where_they_are_wanted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of NVIDIA's packages lie where no loader looks, unless torch has loaded them."""
        told: list[str] = []
        fake = SimpleNamespace(InferenceSession=None, preload_dlls=lambda: told.append("all"))
        monkeypatch.setitem(sys.modules, "onnxruntime", fake)
        assert library.load() is fake
        assert told == []
        assert library.load(cuda=True) is fake
        assert told == ["all"]
        del fake.preload_dlls
        assert library.load(cuda=True) is fake


class FakeCudaSession:
    """A session whose outputs are tensors."""

    def get_inputs(self) -> list[Any]:
        """None that matters."""
        return []

    def get_outputs(self) -> list[Any]:
        """One."""
        return [SimpleNamespace(name="y", type="tensor(float)")]

    def get_providers(self) -> list[str]:
        """CUDA's first."""
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]


class FakeCuda:
    """ONNX Runtime with a CUDA provider that is compiled in, or that a plugin brought."""

    __version__ = "1.32.0"

    def __init__(self, *, plugin: bool) -> None:
        self._plugin = plugin
        self.entries: list[tuple[str, str]] = []

    def SessionOptions(self) -> Any:  # noqa: N802 - ONNX Runtime's name
        """Nothing follows from them."""
        return SimpleNamespace(
            add_session_config_entry=lambda _name, _value: None,
            add_provider_for_devices=lambda _devices, _options: None,
        )

    def RunOptions(self) -> Any:  # noqa: N802 - ONNX Runtime's name
        """Keep what is added."""
        return SimpleNamespace(
            add_run_config_entry=lambda name, value: self.entries.append((name, value))
        )

    def InferenceSession(self, *_: object, **__: object) -> FakeCudaSession:  # noqa: N802
        """Open one."""
        return FakeCudaSession()

    def get_available_providers(self) -> list[str]:
        """What was compiled in."""
        return ["CUDAExecutionProvider"] * (not self._plugin) + ["CPUExecutionProvider"]

    def get_ep_devices(self) -> list[Any]:
        """What plugins listed."""
        card = ep_device("CUDAExecutionProvider", "GPU", NVIDIA, metadata={"version": "0.2.0"})
        return [card] * self._plugin


class TestCudaBuilds:
    """Builds by a fake of ONNX Runtime; not seen on a device."""

    @pytest.fixture(params=[False, True], ids=["compiled in", "plugin"])
    def plugin(self, request: pytest.FixtureRequest) -> bool:
        """Where the provider comes from."""
        return bool(request.param)

    @staticmethod
    def build(monkeypatch: pytest.MonkeyPatch, ort: FakeCuda) -> adapter.OnnxRuntimeBuild:
        """A build for the first card."""
        monkeypatch.setattr(library, "load", lambda **_: ort)
        model = models.load(onnx_models.mlp())
        asked = Request(model=model, handle="gpu:0", platform="cuda")
        return adapter.runtime("onnxruntime.cuda").build(asked)

    def test_a_run_waits_for_the_device_unless_the_binding_is_sure_to(
        self, monkeypatch: pytest.MonkeyPatch, plugin: bool
    ) -> None:
        """A plugin may have no Sync, and windows would end before their work."""
        ort = FakeCuda(plugin=plugin)
        self.build(monkeypatch, ort)
        assert ort.entries == [("disable_synchronize_execution_providers", "1")] * (not plugin)

    def test_cuda_s_libraries_are_in_the_toolchain(
        self, monkeypatch: pytest.MonkeyPatch, plugin: bool
    ) -> None:
        """They can be updated under the same ONNX Runtime."""
        loaded = {"cuda": "13.0", "cudnn": "9.14.0"}
        monkeypatch.setattr(loaded_libraries, "versions", lambda: loaded)
        found = self.build(monkeypatch, FakeCuda(plugin=plugin)).observed().toolchain
        brought = {"onnxruntime cuda provider": "0.2.0"} if plugin else {}
        assert found == {"onnxruntime": "1.32.0", **loaded, **brought}

    def test_they_are_no_part_of_a_build_for_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though torch may have loaded them."""
        monkeypatch.setattr(loaded_libraries, "versions", lambda: {"cuda": "13.0"})
        asked = Request(model=models.load(onnx_models.mlp()), handle="cpu", platform="cpu")
        build = adapter.runtime("onnxruntime.cpu").build(asked)
        assert set(build.observed().toolchain) == {"onnxruntime"}
        build.close()


class TestPlugins:
    """Packages named ``onnxruntime_ep_*``."""

    @pytest.fixture
    def plugin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An installed plugin package whose library does not exist."""
        folder = tmp_path / "onnxruntime_ep_acme"
        folder.mkdir()
        (folder / "__init__.py").write_text(
            "def get_library_path(): return '/nowhere/libacme.so'\n"
            "def get_ep_names(): return ['AcmeExecutionProvider']\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        return folder

    def test_one_that_does_not_load_is_present_but_unusable(self, plugin: Path) -> None:
        """With the loader's words, never silently absent."""
        _, absents = adapter.LIBRARY.devices()
        reason = next(absent.reason for absent in absents if absent.name == plugin.name)
        assert reason.startswith("present but unusable: ")
        assert "/nowhere/libacme.so" in reason

    def test_one_that_takes_no_device_says_so(
        self, plugin: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the OpenVINO plugin does on a CPU that Intel did not make."""
        monkeypatch.setattr(library, "register_plugins", lambda _: {})
        _, absents = adapter.LIBRARY.devices()
        reason = next(absent.reason for absent in absents if absent.name == plugin.name)
        words = "no device: AcmeExecutionProvider loaded and found no hardware that it accepts"
        assert reason == words
        model = models.load(onnx_models.mlp())
        with pytest.raises(RuntimeUnavailable, match=f"onnxruntime_ep_acme: {words}"):
            adapter.runtime("onnxruntime.acme").build(
                Request(model=model, handle="gpu:0", platform="acme")
            )

    def test_no_package_is_unavailable_with_the_pip_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The vendor's build has another name."""
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(RuntimeUnavailable, match=r"not installed: pip install onnxruntime"):
            adapter.LIBRARY.devices()

    def test_a_broken_package_is_present_but_unusable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An import error of a vendor library is shown, not swallowed."""
        monkeypatch.delitem(sys.modules, "onnxruntime")
        (tmp_path / "onnxruntime.py").write_text(
            "raise ImportError('libcudart.so.13: no such file')"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(
            RuntimeUnavailable, match=r"present but unusable: ImportError: libcudart"
        ):
            library.load()
