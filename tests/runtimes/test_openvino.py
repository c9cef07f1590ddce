"""What is particular to OpenVINO on its own: properties, precisions, layers, devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
from pytest_portability.kernels import effective_precision
from pytest_portability.runtimes import Request, openvino_layers
from pytest_portability.runtimes import openvino as adapter
from runtimes.subjects import mlp_inputs, mlp_outputs

ov = pytest.importorskip("openvino")

MLP = mlp_inputs(2)


def request(
    made: onnx.ModelProto,
    precision: str = "native",
    options: Mapping[str, Any] | None = None,
    handle: str = "CPU",
) -> Request:
    """A request for the CPU."""
    return Request(
        model=models.load(made),
        handle=handle,
        platform="cpu",
        precision=precision,
        options=options or {},
    )


def capabilities() -> list[str]:
    """What this CPU computes."""
    found: list[str] = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return found


@pytest.fixture
def runtime() -> adapter.OpenVino:
    """The runtime under test."""
    return adapter.runtime("openvino")


class TestPrecision:
    """What runs is what the compiled model says, not what was asked for."""

    def test_fp32_really_is(self, runtime: adapter.OpenVino) -> None:
        """In the hint, in the layers and in the numbers."""
        build = runtime.build(request(onnx_models.mlp(), "fp32"))
        observed = build.observed()
        assert observed.precision == "fp32"
        assert observed.options["INFERENCE_PRECISION_HINT"] == "f32"
        np.testing.assert_allclose(build.predict(MLP)["y"], mlp_outputs(MLP)["y"], atol=1e-5)

    def test_native_may_silently_be_bf16_and_is_observed(self, runtime: adapter.OpenVino) -> None:
        """Nothing is asked for and a model in fp32 runs in bf16."""
        if "BF16" not in capabilities():
            pytest.skip("OpenVINO has no bf16 on this CPU")
        build = runtime.build(request(onnx_models.mlp()))
        assert build.observed().precision == "bf16"
        assert effective_precision(runtime.trace(request(onnx_models.mlp()), MLP)) == "bf16"
        difference = np.abs(build.predict(MLP)["y"] - mlp_outputs(MLP)["y"]).max()
        assert difference > 1e-4

    @pytest.mark.parametrize(("precision", "capability"), [("fp16", "FP16"), ("bf16", "BF16")])
    def test_a_precision_the_device_lacks_is_unsupported(
        self, runtime: adapter.OpenVino, precision: str, capability: str
    ) -> None:
        """OpenVINO takes the hint and computes in another one (fp16 in bf16, seen on Zen 4)."""
        if capability in capabilities():
            observed = runtime.build(request(onnx_models.mlp(), precision)).observed()
            assert observed.precision == precision
            return
        with pytest.raises(Unsupported, match=f"openvino: {precision}: the device CPU computes"):
            runtime.build(request(onnx_models.mlp(), precision))

    def test_int8_is_for_quantised_models(self, runtime: adapter.OpenVino) -> None:
        """And is observed as such."""
        with pytest.raises(Unsupported, match=r"int8 is for models that come quantised"):
            runtime.build(request(onnx_models.mlp(), "int8"))
        assert (
            runtime.build(request(onnx_models.quantised(), "int8")).observed().precision == "int8"
        )

    def test_tf32_is_refused(self, runtime: adapter.OpenVino) -> None:
        """It is NVIDIA's."""
        assert "TF32 is a mode of NVIDIA GPUs" in runtime.supports("tf32", "cpu")


class TestTrace:
    """Layers of the runtime model."""

    def test_fused_source_nodes_are_named_in_onnx_terms(self, runtime: adapter.OpenVino) -> None:
        """Names that only the compiler knows are dropped."""
        path = runtime.trace(request(onnx_models.conv(), "fp32"), _image())
        kernels = [use.kernel for use in path.uses]
        assert ("Conv", "Relu") in {kernel.absorbs for kernel in kernels}
        assert {op for kernel in kernels for op in kernel.absorbs} <= {"Add", "Conv", "Relu"}
        assert path.source == {"Add": 1, "Conv": 2, "Relu": 2}
        assert {kernel.provider for kernel in kernels} == {"ov:CPU"}

    def test_bf16_adds_moves(self, runtime: adapter.OpenVino) -> None:
        """Reorders between precisions are counted; weights reordered once are not."""
        if "BF16" not in capabilities():
            pytest.skip("OpenVINO has no bf16 on this CPU")
        moves = {
            precision: sum(
                use.launches
                for use in runtime.trace(request(onnx_models.mlp(), precision), MLP).uses
                if use.kernel.role == "move"
            )
            for precision in ("fp32", "bf16")
        }
        assert moves == {"fp32": 0, "bf16": 1}

    def test_shares_are_of_the_layers_own_times(self, runtime: adapter.OpenVino) -> None:
        """They add up to one."""
        path = runtime.trace(request(onnx_models.mlp()), MLP)
        assert sum(use.share or 0 for use in path.uses) == pytest.approx(1)


class TestErrors:
    """OpenVINO's own words, with what to do."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"BOGUS": "1"}, "Unsupported property BOGUS by CPU plugin"),
            ({"INFERENCE_PRECISION_HINT": "f99"}, "Wrong value f99"),
            ({"INFERENCE_NUM_THREADS": -7}, "Expected only non negative integer numbers. Got: -7"),
        ],
    )
    def test_a_refused_property_is_a_usage_error(
        self, runtime: adapter.OpenVino, options: dict[str, Any], words: str
    ) -> None:
        """The valid ones are listed, the read-only ones are not."""
        with pytest.raises(UsageError, match=r"openvino refused an option") as caught:
            runtime.build(request(onnx_models.mlp(), options=options))
        assert words in str(caught.value)
        valid = str(caught.value).partition("valid for CPU: ")[2].split(", ")
        assert "INFERENCE_NUM_THREADS" in valid
        assert "FULL_DEVICE_NAME" not in valid
        assert "Exception from" not in str(caught.value)

    def test_options_in_force_are_recorded(self, runtime: adapter.OpenVino) -> None:
        """As OpenVINO reports them."""
        options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "THROUGHPUT"}
        observed = runtime.build(request(onnx_models.mlp(), options=options)).observed()
        assert observed.threads == 1
        assert observed.options["PERFORMANCE_HINT"] == "THROUGHPUT"

    def test_a_model_it_cannot_read_is_a_model_error(self, runtime: adapter.OpenVino) -> None:
        """In its own words."""
        made = onnx_models.mlp()
        made.graph.node[0].op_type = "Foo"
        with pytest.raises((ModelError, BuildError), match=r"openvino c.*Foo"):
            runtime.build(request(made))

    def test_another_device_lists_what_is_here(self, runtime: adapter.OpenVino) -> None:
        """A target of another machine."""
        with pytest.raises(RuntimeUnavailable, match=r"no device 'GPU\.7'; it has: .*CPU"):
            runtime.build(request(onnx_models.mlp(), handle="GPU.7"))

    def test_a_wrong_input_is_a_build_error(self, runtime: adapter.OpenVino) -> None:
        """``bind`` should have caught it; if not, OpenVINO does."""
        build = runtime.build(request(onnx_models.mlp()))
        with pytest.raises(BuildError, match=r"could not take the inputs: .*f64.*f32"):
            build.stage({"x": MLP["x"].astype(np.float64)})

    def test_the_order_of_calls_is_checked(self, runtime: adapter.OpenVino) -> None:
        """Fetching before launching and launching after closing."""
        build = runtime.build(request(onnx_models.mlp()))
        with pytest.raises(BuildError, match=r"fetch\(\) was called before launch\(\)"):
            build.fetch()
        build.close()
        with pytest.raises(BuildError, match=r"the build is closed"):
            build.launch()

    def test_a_name_with_a_dot_is_unknown(self) -> None:
        """The device belongs to the target."""
        with pytest.raises(UsageError, match=r"unknown runtime 'openvino\.gpu'; known: openvino"):
            adapter.runtime("openvino.gpu")

    def test_no_package_is_unavailable_with_the_pip_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The extra's name is the package's."""
        monkeypatch.setitem(sys.modules, "openvino", None)
        with pytest.raises(RuntimeUnavailable, match=r"not installed: pip install openvino"):
            adapter.LIBRARY.devices()


class FakeCore:
    """A ``Core`` that sees an Intel card, a neural unit and a broken card."""

    available_devices = ("CPU", "GPU.1", "NPU", "GPU.2")
    known: Mapping[str, Mapping[str, object]] = {
        "CPU": {"FULL_DEVICE_NAME": "some CPU"},
        "GPU.1": {
            "FULL_DEVICE_NAME": "Intel(R) Data Center GPU Max 1550 (dGPU)",
            "DEVICE_ARCHITECTURE": "GPU: vendor=0x8086 arch=v12.60.7",
            "GPU_DEVICE_TOTAL_MEM_SIZE": 68719476736,
            "DEVICE_UUID": "8680",
            "DEVICE_PCI_INFO": SimpleNamespace(domain=0, bus=0x1B, device=0, function=0),
        },
        "NPU": {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "DEVICE_ARCHITECTURE": "4000"},
    }

    def get_property(self, device: str, name: str) -> object:
        """Raise for what the device does not support, as OpenVINO does."""
        if device not in self.known:
            msg = "Exception from src/plugin.cpp:3:\nclGetDeviceIDs failed: -1"
            raise RuntimeError(msg)
        supported = self.known[device]
        return list(supported) if name == "SUPPORTED_PROPERTIES" else supported[name]


class TestDevices:
    """Devices of OpenVINO."""

    def test_this_machine_s_cpu_is_found(self) -> None:
        """With the name every library uses for it."""
        devices, _ = adapter.LIBRARY.devices()
        cpu = next(device for device in devices if device.handle == "CPU")
        assert (cpu.vendor, cpu.platform, cpu.runtimes) == ("cpu", "cpu", ("openvino",))

    def test_cards_and_neural_units_are_described(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only supported properties are asked for; a broken device is shown as such."""
        fake = SimpleNamespace(Core=FakeCore, get_version=lambda: "2026.4.1-1-releases")
        monkeypatch.setattr(adapter, "_import", lambda: fake)
        devices, absents = adapter.LIBRARY.devices()
        _, card, unit = devices
        assert (card.vendor, card.arch, card.platform) == ("intel", "xe-hpc", "xpu")
        assert (card.handle, card.index, card.memory_bytes) == ("GPU.1", 1, 64 * 2**30)
        assert card.facts == {"openvino": "2026.4.1"}
        assert card.address == {"uuid": "8680", "pci": "0000:1b:00.0"}
        assert (unit.arch, unit.platform, unit.product) == ("4000", "npu", "Intel(R) AI Boost")
        (absent,) = absents
        assert absent.name == "openvino GPU.2"
        assert absent.reason == "present but unusable: clGetDeviceIDs failed: -1"

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("GPU: vendor=0x8086 arch=v12.60.7", "xe-hpc"),
            ("GPU: vendor=0x8086 arch=v12.55.8", "xe-hpg"),
            ("GPU: vendor=0x8086 arch=v12.71.4", "xe-lpg"),
            ("GPU: vendor=0x8086 arch=v20.1.0", "xe2-hpg"),
            ("GPU: vendor=0x8086 arch=v99.1.0", "xe-99.1"),
            ("4000", "4000"),
        ],
    )
    def test_architectures_have_the_field_s_names(self, text: str, name: str) -> None:
        """As engineers write them in ``-m``."""
        assert adapter.architecture(text) == name


class FakeCompiled:
    """A compiled model of one layer, on the devices given."""

    def __init__(self, *devices: str) -> None:
        self.devices = devices

    def get_property(self, name: str) -> object:
        """What OpenVINO answers of a compiled model."""
        return ["EXECUTION_DEVICES"] if name == "SUPPORTED_PROPERTIES" else list(self.devices)

    def get_runtime_model(self) -> Any:
        """A layer that is not fed by constants."""
        facts = {"layerType": "FullyConnected", "runtimePrecision": "f16"}
        info = {k: SimpleNamespace(astype=lambda _, v=v: v) for k, v in facts.items()}
        node = SimpleNamespace(
            get_rt_info=lambda: info, input_values=list, get_friendly_name=lambda: "fc"
        )
        return SimpleNamespace(get_ordered_ops=lambda: [node])


@pytest.mark.parametrize(
    ("handle", "devices", "asked", "providers"),
    [
        ("GPU", ["GPU.0"], "ov:GPU", {"ov:GPU": 1}),
        ("GPU.0", ["GPU"], "ov:GPU", {"ov:GPU": 1}),
        ("GPU.1", ["GPU.1"], "ov:GPU.1", {"ov:GPU.1": 1}),
        ("GPU", ["CPU"], "ov:GPU", {"ov:CPU": 1}),
        ("GPU.0", ["GPU.0", "CPU"], "ov:CPU+GPU", {"ov:CPU+GPU": 1}),
        ("NPU", ["GPU.0", "CPU"], "ov:NPU", {"ov:CPU+GPU": 1}),
    ],
)
def test_a_device_has_one_spelling_and_layers_are_counted_once(
    handle: str, devices: list[str], asked: str, providers: dict[str, int]
) -> None:
    """``GPU`` and ``GPU.0`` are one; who of several ran a layer is not told, and not made up."""
    fake = SimpleNamespace(get_version=lambda: "2026.4.1-1")
    compiled = FakeCompiled(*devices)
    found = adapter._observe(fake, compiled, request(onnx_models.mlp(), handle=handle))
    assert (found.asked_provider, found.providers) == (asked, providers)
    assert bool(found.notes) == (len(devices) > 1)


class FakeRequest:
    """An infer request of an NPU."""

    def set_tensor(self, name: str, tensor: Any) -> None:
        """Nothing is computed from it."""

    def infer(self, *, share_outputs: bool) -> None:
        """Run nothing."""


class FakeNpuModel:
    """A model on an NPU, whose plugin tells no layers: a dummy, or not even that."""

    def __init__(self, error: str) -> None:
        self._error = error

    def get_property(self, name: str) -> object:
        """What OpenVINO answers of a compiled model."""
        return ["EXECUTION_DEVICES"] if name == "SUPPORTED_PROPERTIES" else ["NPU"]

    def create_infer_request(self) -> FakeRequest:
        """For a trace."""
        return FakeRequest()

    def get_runtime_model(self) -> Any:
        """Parameter and Result, which are the model's and have no ``layerType``."""
        if self._error:
            raise RuntimeError(self._error)
        nodes = [
            SimpleNamespace(
                get_rt_info=dict, input_values=list, get_friendly_name=lambda name=name: name
            )
            for name in ("x", "y/sink_port_0")
        ]
        return SimpleNamespace(get_ordered_ops=lambda: nodes)


class FakeNpu:
    """OpenVINO on a machine with an NPU: the calls of its documentation, not seen on a device."""

    def __init__(self, error: str = "") -> None:
        self._error = error
        self.available_devices = ["CPU", "NPU"]
        self.given: list[dict[str, Any]] = []

    Tensor = staticmethod(lambda array, *, shared_memory: (array, shared_memory))

    def Core(self) -> FakeNpu:  # noqa: N802 - OpenVINO's name
        """Itself."""
        return self

    def get_version(self) -> str:
        """Of the package."""
        return "2026.4.1-1-releases"

    def get_property(self, device: str, name: str) -> list[str]:
        """What Intel's NPUs compute."""
        assert (device, name) == ("NPU", "OPTIMIZATION_CAPABILITIES")
        return ["FP16", "INT8", "EXPORT_IMPORT"]

    def read_model(self, source: bytes) -> bytes:
        """As it is."""
        return source

    def compile_model(self, model: bytes, device: str, properties: dict[str, Any]) -> FakeNpuModel:
        """Keep the properties."""
        del model, device
        self.given.append(properties)
        return FakeNpuModel(self._error)


class TestDevicesThatTellNoLayers:
    """As NPUs, whose plugin has no runtime model of what runs."""

    @pytest.fixture(params=["", "Failed to construct a dummy ov::Model object"])
    def npu(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeNpu:
        """A dummy, or none."""
        fake = FakeNpu(request.param)
        monkeypatch.setattr(adapter, "_import", lambda: fake)
        return fake

    @staticmethod
    def asked(precision: str = "native") -> Request:
        """A request for the NPU."""
        return Request(
            model=models.load(onnx_models.mlp()),
            handle="NPU",
            platform="npu",
            precision=precision,
            cache_dir="/cache",
        )

    def test_who_ran_what_is_unknown_and_not_made_up(
        self, npu: FakeNpu, runtime: adapter.OpenVino
    ) -> None:
        """No counts are no verdict of placement."""
        found = runtime.build(self.asked()).observed()
        assert (found.asked_provider, found.providers, found.precision) == ("ov:NPU", {}, "")
        assert npu.given[0]["CACHE_DIR"] == "/cache"

    @pytest.mark.usefixtures("npu")
    def test_the_kernel_path_is_none_and_says_why(self, runtime: adapter.OpenVino) -> None:
        """Inputs and outputs are no kernels."""
        path = runtime.trace(self.asked(), MLP)
        assert (path.evidence, path.uses) == ("none", ())
        assert path.caveats == ("OpenVINO does not tell the layers that run on NPU",)
        assert path.source == {"Add": 2, "Gelu": 2, "MatMul": 2}
        assert effective_precision(path) == ""

    def test_a_trace_takes_nothing_from_the_cache(
        self, npu: FakeNpu, runtime: adapter.OpenVino
    ) -> None:
        """A model from there has no layer names."""
        runtime.trace(self.asked(), MLP)
        assert npu.given == [{"PERF_COUNT": True}]

    @pytest.mark.usefixtures("npu")
    def test_fp32_is_unsupported_where_the_device_has_none(self, runtime: adapter.OpenVino) -> None:
        """It is a hint, so something else would run."""
        words = "openvino: fp32: the device NPU computes FP16, INT8, EXPORT_IMPORT"
        with pytest.raises(Unsupported, match=words):
            runtime.build(self.asked("fp32"))


def test_out_of_memory_is_told_apart() -> None:
    """It is a result, not a failure."""
    msg = "Check 'x' failed at src/a.cpp:3: CL_OUT_OF_RESOURCES_MEMORY"
    words = "openvino could not run it: CL_OUT_OF_RESOURCES_MEMORY"
    with pytest.raises(DoesNotFit, match=words), adapter._translated("run it"):
        raise RuntimeError(msg)


def test_the_cache_is_for_devices_where_compiling_is_slow(runtime: adapter.OpenVino) -> None:
    """A CPU build is compiled anew: it is quick, and a cached model has no names to trace."""
    asked = Request(
        model=models.load(onnx_models.mlp()), handle="CPU", platform="cpu", cache_dir="/nowhere/x"
    )
    assert "CACHE_DIR" not in runtime.build(asked).observed().options


def test_state_and_strings_are_inputs_too(runtime: adapter.OpenVino) -> None:
    """Several inputs by name, several outputs in the model's order."""
    state = np.zeros((1, 2, 8), np.float32)
    inputs = {"x": np.ones((3, 2, 5), np.float32), "h": state, "c": state}
    outputs = runtime.build(request(onnx_models.lstm())).predict(inputs)
    assert [(name, array.shape) for name, array in outputs.items()] == [
        ("y", (3, 1, 2, 8)),
        ("hn", (1, 2, 8)),
    ]


def _image() -> models.Arrays:
    return {"x": np.zeros((2, 3, 8, 8), np.float32)}


def test_a_layer_too_quick_for_its_counter_is_still_in_the_path() -> None:
    """OpenVINO calls it "not_executed", and does not the next time."""
    layer = {"layerType": "Reshape", "runtimePrecision": "f32", "primitiveType": "unknown"}
    quick, slow = ({**layer, "execTimeMcs": spent} for spent in ("not_executed", "3"))
    (one,), (other,) = (openvino_layers.uses([some], "ov:CPU", {}) for some in (quick, slow))
    assert one.kernel == other.kernel
    assert (one.launches, one.share) == (1, None)


def test_a_layer_ran_in_the_precision_of_its_implementation() -> None:
    """Products of dequantised numbers say that they are of i8, and run in f32."""
    layer = {"layerType": "FullyConnected", "runtimePrecision": "i8", "execTimeMcs": "3"}
    names = ("brgemm_avx512_I8", "int8"), ("brgemm_avx512_f32", "fp32"), ("unknown_f32", "int8")
    for name, precision in names:
        (found,) = openvino_layers.uses([{**layer, "primitiveType": name}], "ov:CPU", {})
        assert found.kernel.precision == precision
        assert openvino_layers.effective([{**layer, "primitiveType": name}]) == precision
