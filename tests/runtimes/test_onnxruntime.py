"""What is particular to ONNX Runtime: providers, devices, options, fusions, errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest

from pytest_portability import models
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    ModelError,
    RuntimeUnavailable,
    Unsupported,
    UsageError,
)
from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.runtimes import Request, load
from pytest_portability.runtimes import onnxruntime as adapter
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes import onnxruntime_options as options_module
from pytest_portability.runtimes import onnxruntime_profile as profile
from pytest_portability.runtimes import onnxruntime_providers as providers
from runtimes.subjects import mlp_inputs, mlp_outputs

ort = pytest.importorskip("onnxruntime")

MLP = mlp_inputs(2)


def request(
    made: onnx.ModelProto,
    precision: str = "native",
    options: Mapping[str, Any] | None = None,
) -> Request:
    """A request for the CPU."""
    model = models.load(made)
    return Request(
        model=model, handle="cpu", platform="cpu", precision=precision, options=options or {}
    )


def trace(made: onnx.ModelProto, inputs: models.Arrays, **more: Any) -> KernelPath:
    """A trace on the CPU provider."""
    return adapter.runtime("onnxruntime.cpu").trace(request(made, **more), inputs)


def launches(path: KernelPath) -> dict[str, int]:
    """Op → launches per inference."""
    found: dict[str, int] = {}
    for use in path.uses:
        found[use.kernel.op] = found.get(use.kernel.op, 0) + use.launches
    return found


class TestCpu:
    """The CPU provider."""

    def test_a_fusion_shows_with_what_it_absorbed(self) -> None:
        """Derived from the optimised graph, not from a table."""
        path = trace(onnx_models.mlp(), MLP)
        assert launches(path) == {"BiasGelu": 2, "MatMul": 2}
        absorbed = {use.kernel.op: use.kernel.absorbs for use in path.uses}
        assert absorbed == {"BiasGelu": ("Add", "Gelu"), "MatMul": ("MatMul",)}
        assert path.source == {"Add": 2, "Gelu": 2, "MatMul": 2}
        assert path.evidence == "executed"

    def test_a_fusion_that_is_switched_off_is_gone_from_the_trace(self) -> None:
        """By the optimiser's name or by the level."""
        for options in (
            {"disabled_optimizers": ["BiasGeluFusion"]},
            {"graph_optimization_level": "basic"},
            {"graph_optimization_level": "ORT_DISABLE_ALL"},
        ):
            path = trace(onnx_models.mlp(), MLP, options=options)
            assert launches(path) == {"Add": 2, "Gelu": 2, "MatMul": 2}

    def test_a_blocked_layout_shows_as_implementation(self) -> None:
        """Only the node's name tells; what it absorbed is not guessed."""
        x = {"x": np.zeros((2, 3, 8, 8), np.float32)}
        kernels = [use.kernel for use in trace(onnx_models.conv(), x).uses]
        blocked = [kernel for kernel in kernels if kernel.implementation == "nchwc"]
        if not blocked:
            pytest.skip("this CPU has no blocked convolutions")
        assert {kernel.op for kernel in blocked} == {"Conv"}
        assert all(kernel.absorbs == () for kernel in blocked)
        assert any((k.op, k.role) == ("ReorderOutput", "move") for k in kernels)

    def test_quantised_work_is_int8(self) -> None:
        """The integer product is, the nodes around it are moves."""
        x = {"x": np.ones((2, 64), np.float32)}
        path = trace(onnx_models.quantised(), x, precision="int8")
        products = [use.kernel for use in path.uses if "MatMul" in use.kernel.op]
        assert [kernel.precision for kernel in products] == ["int8"]
        assert effective_precision(path) == "int8"

    def test_the_body_of_a_branch_has_the_branch_s_time(self) -> None:
        """So shares do not count it twice."""
        path = trace(onnx_models.branching(), {"x": np.ones((2, 4), np.float32)})
        shares = {use.kernel.op: use.share for use in path.uses}
        assert shares["If"] == 0
        assert "Relu" in shares
        assert "Neg" not in shares

    def test_the_arena_peak_is_exact_and_grows_with_the_batch(self) -> None:
        """The footprint of a CPU build, free of noise."""
        runtime = adapter.runtime("onnxruntime.cpu")
        assert runtime.arena_peak_bytes is None
        peaks = []
        for batch in (2, 2, 64):
            runtime.trace(request(onnx_models.mlp()), mlp_inputs(batch))
            peaks.append(runtime.arena_peak_bytes or 0)
        assert peaks[0] == peaks[1]
        assert peaks[2] - peaks[0] >= 62 * 4 * 64 * 4

    def test_without_an_arena_there_is_no_peak(self) -> None:
        """None, not zero."""
        runtime = adapter.runtime("onnxruntime.cpu")
        runtime.trace(request(onnx_models.mlp(), options={"enable_cpu_mem_arena": False}), MLP)
        assert runtime.arena_peak_bytes is None

    def test_traces_leave_no_file_behind(self, tmp_path: Path, monkeypatch: Any) -> None:
        """The profile and the saved model are private and temporary."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        trace(onnx_models.mlp(), MLP)
        assert list(tmp_path.iterdir()) == []

    def test_waiting_threads_sleep_unless_the_user_says_otherwise(self) -> None:
        """Spinning takes the cores from the neighbours; what is in force is recorded."""
        key = "config.session.intra_op.allow_spinning"
        runtime = adapter.runtime("onnxruntime.cpu")
        mine = {"config": {"session.intra_op.allow_spinning": 1}}
        assert runtime.build(request(onnx_models.mlp())).observed().options[key] == "0"
        build = runtime.build(request(onnx_models.mlp(), options=mine))
        assert build.observed().options[key] == "1"

    def test_threads_in_force_are_observed(self) -> None:
        """What was set, or what the default pool turned out to be."""
        runtime = adapter.runtime("onnxruntime.cpu")
        one = runtime.build(request(onnx_models.mlp(), options={"intra_op_num_threads": 1}))
        assert one.observed().threads == 1
        default = runtime.build(request(onnx_models.mlp())).observed().threads
        assert default is not None
        assert default >= 1

    def test_a_file_with_external_data_is_read_by_its_path(self, tmp_path: Path) -> None:
        """ONNX Runtime reads it itself, traces included."""
        path = onnx_models.save_external(onnx_models.mlp(), tmp_path / "net.onnx")
        asked = Request(model=models.load(path), handle="cpu", platform="cpu")
        runtime = adapter.runtime("onnxruntime.cpu")
        outputs = runtime.build(asked).predict(MLP)
        np.testing.assert_allclose(outputs["y"], mlp_outputs(MLP)["y"], atol=1e-5)
        assert launches(runtime.trace(asked, MLP))["BiasGelu"] == 2

    def test_strings_and_several_outputs_keep_their_order(self) -> None:
        """Outputs come in the model's order; strings are objects."""
        runtime = adapter.runtime("onnxruntime.cpu")
        words = runtime.build(request(onnx_models.text())).predict({"x": np.array(["a", "bc"])})
        assert words["y"].tolist() == ["a", "bc"]
        state = np.zeros((1, 2, 8), np.float32)
        inputs = {"x": np.ones((3, 2, 5), np.float32), "h": state, "c": state}
        outputs = runtime.build(request(onnx_models.lstm())).predict(inputs)
        assert {name: array.shape for name, array in outputs.items()} == {
            "y": (3, 1, 2, 8),
            "hn": (1, 2, 8),
        }

    def test_not_a_number_is_an_output_like_any_other(self) -> None:
        """Judging it is not the adapter's job."""
        build = adapter.runtime("onnxruntime.cpu").build(request(onnx_models.not_finite()))
        assert np.isnan(build.predict({"x": np.ones((2, 4), np.float32)})["y"]).all()

    def test_precision_is_claimed_only_where_nothing_else_is_possible(self) -> None:
        """A quantised graph may run either way, so only a trace tells."""
        runtime = adapter.runtime("onnxruntime.cpu")
        assert runtime.build(request(onnx_models.mlp())).observed().precision == "fp32"
        assert runtime.build(request(onnx_models.quantised())).observed().precision == ""


class TestErrors:
    """Every failure says what was asked, what was found and what to do."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"threads": 2}, "unknown option 'threads' for onnxruntime.cpu; valid: config, "),
            (
                {"graph_optimization_level": "most"},
                "must be one of disable_all, basic, extended, layout, all; given was 'most'",
            ),
            (
                {"intra_op_num_threads": True},
                "a whole number of threads, 0 or more; given was True",
            ),
            ({"intra_op_num_threads": -1}, "a whole number of threads, 0 or more; given was -1"),
            ({"enable_mem_pattern": 1}, "must be True or False; given was 1"),
            ({"config": ["x"]}, "must be a mapping from name to value"),
            ({"disabled_optimizers": "BiasGeluFusion"}, "must be a list of optimiser names"),
        ],
    )
    def test_a_wrong_option_is_a_usage_error(self, options: dict[str, Any], words: str) -> None:
        """ONNX Runtime itself would ignore most of these."""
        with pytest.raises(UsageError) as caught:
            adapter.runtime("onnxruntime.cpu").build(request(onnx_models.mlp(), options=options))
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("precision", "words"),
        [
            ("fp16", "the CPU provider computes fp16 nodes in fp32"),
            ("bf16", "the CPU provider has hardly any bf16 kernels"),
            ("tf32", "TF32 is a mode of NVIDIA GPUs"),
            ("int8", "int8 is for models that come quantised; this one has no quantised nodes"),
        ],
    )
    def test_a_precision_the_cpu_lacks_is_unsupported(self, precision: str, words: str) -> None:
        """The item skips with this reason."""
        with pytest.raises(Unsupported, match=words):
            adapter.runtime("onnxruntime.cpu").build(request(onnx_models.mlp(), precision))

    def test_running_out_of_memory_does_not_fit(self) -> None:
        """16 TiB are too much; so is what overflows."""
        build = adapter.runtime("onnxruntime.cpu").build(request(onnx_models.huge()))
        for size in (2**42, 2**62):
            with pytest.raises(DoesNotFit, match="could not run the model"):
                build.predict({"n": np.array([size])})

    def test_an_op_set_this_onnx_runtime_does_not_know_is_a_model_error(self) -> None:
        """``onnx`` may be newer than ``onnxruntime``."""
        made = onnx_models.mlp()
        made.opset_import[0].version = 99
        asked = Request(model=models.Model(kind="onnx", value=made), handle="cpu", platform="cpu")
        with pytest.raises(ModelError, match="Opset 99.*install a newer onnxruntime"):
            adapter.runtime("onnxruntime.cpu").build(asked)

    def test_another_refusal_is_a_build_error_in_onnx_runtime_s_words(self) -> None:
        """Without the paths of the machine it was built on."""
        made = onnx_models.mlp()
        made.graph.node[2].op_type = "Foo"
        with pytest.raises(
            BuildError, match="could not build the model: .*No Op registered for Foo"
        ) as caught:
            adapter.runtime("onnxruntime.cpu").build(request(made))
        assert "onnxruntime_src" not in str(caught.value)

    def test_a_wrong_input_is_a_build_error(self) -> None:
        """``bind`` should have caught it; if not, ONNX Runtime does."""
        build = adapter.runtime("onnxruntime.cpu").build(request(onnx_models.mlp()))
        with pytest.raises(BuildError, match=r"Unexpected input data type"):
            build.predict({"x": np.zeros((2, 4, 64), np.float64)})

    def test_the_order_of_calls_is_checked(self) -> None:
        """Fetching before launching and launching after closing."""
        build = adapter.runtime("onnxruntime.cpu").build(request(onnx_models.mlp()))
        with pytest.raises(BuildError, match=r"fetch\(\) was called before launch\(\)"):
            build.fetch()
        build.stage(MLP)
        build.close()
        with pytest.raises(BuildError, match="the build is closed"):
            build.launch()

    def test_a_provider_that_is_not_here_is_unavailable(self) -> None:
        """ONNX Runtime itself would warn and run on the CPU."""
        with pytest.raises(
            RuntimeUnavailable, match="onnxruntime.qnn: .*no such provider.*it has: .*cpu"
        ):
            adapter.runtime("onnxruntime.qnn").build(request(onnx_models.mlp()))

    def test_a_torch_module_has_to_be_exported_first(self) -> None:
        """Conversion is another stage's work."""
        model = models.Model(kind="torch", value=None)
        with pytest.raises(Unsupported, match="builds ONNX models; this is a torch model"):
            adapter.runtime("onnxruntime.cpu").build(
                Request(model=model, handle="cpu", platform="cpu")
            )

    def test_a_runtime_name_without_provider_lists_them(self) -> None:
        """``onnxruntime`` alone says too little."""
        with pytest.raises(
            UsageError, match=r"names no execution provider; known: onnxruntime\.cpu"
        ):
            load("onnxruntime")


class TestOpenVino:
    """The OpenVINO provider, the second one that a CI without accelerators can have."""

    @pytest.fixture
    def openvino(self) -> adapter.OnnxRuntime:
        """The runtime, if its plugin accepts this machine."""
        pytest.importorskip("onnxruntime_ep_openvino")
        runtime = adapter.runtime("onnxruntime.openvino")
        try:
            runtime.build(request(onnx_models.mlp())).close()
        except RuntimeUnavailable as exc:
            pytest.skip(str(exc))
        return runtime

    def test_attention_of_op_set_23_is_left_to_the_cpu(self, openvino: adapter.OnnxRuntime) -> None:
        """The counts are exact, and the note names the node."""
        observed = openvino.build(request(onnx_models.attention())).observed()
        assert observed.asked_provider == "OpenVINOExecutionProvider"
        assert observed.providers == {"OpenVINOExecutionProvider": 2, "CPUExecutionProvider": 1}
        left = "OpenVINOExecutionProvider left 1 × Attention on CPUExecutionProvider"
        assert observed.notes == (left,)
        x = {"x": np.zeros((2, 8, 64), np.float32)}
        path = openvino.trace(request(onnx_models.attention()), x)
        on_cpu = [u.kernel.op for u in path.uses if u.kernel.provider == "CPUExecutionProvider"]
        assert on_cpu == ["Attention"]

    def test_native_may_silently_be_bf16_and_the_trace_tells(
        self, openvino: adapter.OnnxRuntime
    ) -> None:
        """A model in fp32, nothing asked for, and products in bf16."""
        if not _openvino_cpu_has("BF16"):
            pytest.skip("OpenVINO has no bf16 on this CPU")
        path = openvino.trace(request(onnx_models.mlp()), MLP)
        assert openvino.build(request(onnx_models.mlp())).observed().precision == ""
        assert effective_precision(path) == "bf16"
        assert all(
            "bf16" in u.kernel.implementation for u in path.uses if u.kernel.role == "compute"
        )

    def test_fp32_really_is(self, openvino: adapter.OnnxRuntime) -> None:
        """Through the one option that reaches OpenVINO."""
        path = openvino.trace(request(onnx_models.mlp(), "fp32"), MLP)
        assert {u.kernel.precision for u in path.uses if u.kernel.role == "compute"} == {"fp32"}
        outputs = openvino.build(request(onnx_models.mlp(), "fp32")).predict(MLP)
        np.testing.assert_allclose(outputs["y"], mlp_outputs(MLP)["y"], atol=1e-5)

    def test_a_precision_the_device_lacks_is_unsupported(
        self, openvino: adapter.OnnxRuntime
    ) -> None:
        """OpenVINO would take the hint and compute in another one."""
        if _openvino_cpu_has("FP16"):
            pytest.skip("OpenVINO has fp16 on this CPU")
        with pytest.raises(Unsupported, match="fp16: the device says that it computes .*FP32"):
            openvino.build(request(onnx_models.mlp(), "fp16"))

    def test_the_compiled_node_is_not_counted_beside_its_kernels(
        self, openvino: adapter.OnnxRuntime
    ) -> None:
        """Their time is its time; and its arena is not the model's memory."""
        path = openvino.trace(request(onnx_models.mlp()), MLP)
        assert not any("OpenVINO" in use.kernel.op for use in path.uses)
        assert openvino.arena_peak_bytes is None

    def test_another_handle_lists_what_is_here(self, openvino: adapter.OnnxRuntime) -> None:
        """A target of another machine."""
        asked = Request(model=models.load(onnx_models.mlp()), handle="gpu:7", platform="xpu")
        with pytest.raises(RuntimeUnavailable, match="has no device 'gpu:7'; it has: .*cpu"):
            openvino.build(asked)


def _openvino_cpu_has(capability: str) -> bool:
    found = [
        entry.ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split()
        for entry in ort.get_ep_devices()
        if entry.ep_name == "OpenVINOExecutionProvider"
    ]
    return any(capability in capabilities for capabilities in found)


# --- devices of hardware that is not here -------------------------------------------------------


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
                ("apple", "mps", "npu:0", ""),
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
        self, entry: Any, runtime: str, facts: tuple[str, str, str, str]
    ) -> None:
        """The product is empty where ONNX Runtime has no name, to be joined with another view."""
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
        monkeypatch.setattr(providers, "_nvidia_smi", lambda: [h200, a100])
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        available = ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
        devices, absents = providers.built_in(available, {"TensorrtExecutionProvider"})
        assert absents == []
        assert [(d.handle, d.arch, d.product) for d in devices] == [
            ("gpu:0", "sm_90", "NVIDIA H200"),
            ("gpu:1", "sm_80", "NVIDIA A100-SXM4-80GB"),
        ]
        assert devices[0].memory_bytes == 143771 * 2**20
        assert devices[0].facts["driver"] == "580.95.05"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        devices, _ = providers.built_in(available, {"TensorrtExecutionProvider"})
        assert [(d.handle, d.product) for d in devices] == [("gpu:0", "NVIDIA A100-SXM4-80GB")]

    def test_the_kernel_driver_tells_amd_architectures(self, tmp_path: Path) -> None:
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
        devices, _ = providers.built_in(["MIGraphXExecutionProvider"], set(), tmp_path)
        assert [(d.handle, d.arch, d.product) for d in devices] == [
            ("gpu:0", "gfx942", "AMD Instinct MI300X OAM"),
            ("gpu:1", "gfx90a", ""),
        ]

    def test_a_compiled_in_provider_without_hardware_is_absent_with_its_reason(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """``get_available_providers()`` lists what was compiled in, not what works."""
        monkeypatch.setattr(providers, "_nvidia_smi", list)
        available = ["CUDAExecutionProvider", "ROCMExecutionProvider", "AzureExecutionProvider"]
        devices, absents = providers.built_in(available, set(), tmp_path)
        assert devices == []
        assert {a.name: a.reason for a in absents} == {
            "onnxruntime.cuda": "no device: onnxruntime has CUDAExecutionProvider, "
            "and no nvidia GPU answered",
            "onnxruntime.rocm": "no device: onnxruntime has ROCMExecutionProvider, "
            "and no amd GPU answered",
        }

    def test_this_machine_s_cpu_is_found(self) -> None:
        """With the name every library uses for it."""
        devices, _ = adapter.LIBRARY.devices()
        cpu = next(device for device in devices if "onnxruntime.cpu" in device.runtimes)
        assert (cpu.handle, cpu.vendor, cpu.platform) == ("cpu", "cpu", "cpu")


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
        assert reason == (
            "no device: AcmeExecutionProvider loaded and found no hardware that it accepts"
        )

    def test_no_package_is_unavailable_with_the_pip_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The vendor's build has another name."""
        monkeypatch.setattr(library.importlib.util, "find_spec", lambda _: None)
        with pytest.raises(RuntimeUnavailable, match="not installed: pip install onnxruntime"):
            adapter.LIBRARY.devices()

    def test_a_broken_package_is_present_but_unusable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An import error of a vendor library is shown, not swallowed."""
        monkeypatch.delitem(library.sys.modules, "onnxruntime")
        (tmp_path / "onnxruntime.py").write_text(
            "raise ImportError('libcudart.so.13: no such file')"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(
            RuntimeUnavailable, match="present but unusable: ImportError: libcudart"
        ):
            library.load()


class TestPrecisions:
    """How each provider is asked for a precision."""

    @pytest.mark.parametrize(
        ("runtime", "precision", "switches"),
        [
            ("cuda", "fp32", {"use_tf32": "0"}),
            ("cuda", "tf32", {"use_tf32": "1"}),
            ("tensorrt", "fp16", {"trt_fp16_enable": "1"}),
            ("migraphx", "bf16", {"migraphx_bf16_enable": "1"}),
            ("rocm", "fp16", {}),
        ],
    )
    def test_the_switch_is_the_provider_s(
        self, runtime: str, precision: str, switches: dict[str, str]
    ) -> None:
        """And the user's option of the same name wins."""
        provider = providers.named(runtime)
        asked = Request(
            model=models.Model(kind="onnx", value=None),
            handle="gpu:0",
            platform=provider.platform,
            precision=precision,
        )
        assert provider.supports(precision) == ""
        found = options_module.in_force(provider, asked)
        assert found.provider == switches
        assert found.config == {}, "on an accelerator the host's threads may spin"

    def test_the_user_s_device_table_is_merged_with_the_precision(self) -> None:
        """Both reach OpenVINO through the same option."""
        asked = Request(
            model=models.Model(kind="onnx", value=None),
            handle="cpu",
            platform="cpu",
            precision="fp32",
            options={"provider": {"load_config": {"CPU": {"INFERENCE_NUM_THREADS": 1}}}},
        )
        found = options_module.in_force(providers.named("openvino"), asked)
        text = found.provider["load_config"]
        assert '"CPU": {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}' in text

    def test_files_are_converted_where_there_is_no_switch(self) -> None:
        """The CUDA provider computes in the file's types, TensorRT is told."""
        assert adapter.runtime("onnxruntime.cuda").converted == ("bf16", "fp16")
        assert adapter.runtime("onnxruntime.tensorrt").converted == ()
        assert adapter.runtime("onnxruntime.cpu").converted == ()

    def test_what_a_provider_cannot_switch_is_refused_with_a_reason(self) -> None:
        """Core ML decides by itself; TF32 belongs to NVIDIA."""
        assert "Core ML picks" in adapter.runtime("onnxruntime.coreml").supports("fp32", "mps")
        assert adapter.runtime("onnxruntime.rocm").supports("tf32", "rocm") == (
            "TF32 is a mode of NVIDIA GPUs"
        )

    def test_tensorrt_in_fp32_needs_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No option switches its TF32 off."""
        provider = providers.named("tensorrt")
        monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
        assert "NVIDIA_TF32_OVERRIDE=0" in providers.needs_environment(provider, "fp32")
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        assert providers.needs_environment(provider, "fp32") == ""


# --- recorded profiles --------------------------------------------------------------------------


def node(name: str, op: str, provider: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    """A ``Node`` event."""
    shape = [{"float16": [1]}]
    found = {"op_name": op, "provider": provider, "output_type_shape": shape, **args}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": found}


def run(ts: int, dur: int) -> dict[str, Any]:
    """The event around one inference."""
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "args": {}}


class TestProfiles:
    """Profiles of providers that are not here."""

    def test_an_asynchronous_provider_has_launches_and_no_shares(self) -> None:
        """Its node times are launch times (microsoft/onnxruntime #20398)."""
        events = [
            run(0, 50),
            *(node("mm", "MatMul", "CUDAExecutionProvider", t, 3) for t in (10, 110, 210)),
            *(node("in", "MemcpyFromHost", "CUDAExecutionProvider", t, 3) for t in (5, 105, 205)),
            run(100, 50),
            run(200, 50),
        ]
        found = profile.read(events, ["CPUExecutionProvider"])
        assert [(u.kernel.op, u.kernel.role, u.launches, u.share) for u in found.uses] == [
            ("MatMul", "compute", 1, None),
            ("MemcpyFromHost", "move", 1, None),
        ]
        assert found.uses[0].kernel.precision == "fp16"
        assert found.caveats == ("times of CUDAExecutionProvider are launch times, so no shares",)
        assert found.arena_peak_bytes is None

    def test_the_first_run_is_warm_up(self) -> None:
        """Its times do not count, nor do its launches."""
        cpu = "CPUExecutionProvider"
        events = [
            run(0, 1000),
            node("a", "MatMul", cpu, 1, 990),
            run(1000, 10),
            node("a", "MatMul", cpu, 1001, 5),
        ]
        (use,) = profile.read(events, [cpu]).uses
        assert (use.launches, use.share) == (1, 0.5)

    @pytest.mark.parametrize(
        ("op", "plain"),
        [
            ("OpenVINOExecutionProvider_11857231728490505789_0", "OpenVINOExecutionProvider"),
            ("TRTKernel_graph_main_12345678901_0_0", "TRTKernel_graph_main"),
            ("DmlFusedNode_0_41", "DmlFusedNode"),
            ("MatMul", "MatMul"),
        ],
    )
    def test_running_numbers_and_hashes_are_no_part_of_a_kernel(self, op: str, plain: str) -> None:
        """Or no two builds would compare."""
        assert profile.normal(op) == plain

    def test_a_fused_chain_is_walked_back_to_its_living_inputs(self) -> None:
        """Gemm of MatMul and Add, whose weights and input are still there."""
        optimised = onnx_models.model(
            [
                onnx.helper.make_node("Gemm", ["h0", "w1", "b1"], ["a1"], name="gemm"),
                onnx.helper.make_node("Relu", ["a1"], ["y"]),
            ],
            {"h0": ["batch", 64]},
            {"y": ["batch", 64]},
            [onnx_models.tensor("w1", 64, 64), onnx_models.tensor("b1", 64)],
        )
        found = profile.fused(onnx_models.mlp(), optimised)
        assert found["Gemm", "gemm"] == ("Add", "MatMul")
