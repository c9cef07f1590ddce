"""What is inside compiled nodes, through a whole trace with fakes of ONNX Runtime and the vendors.

The fakes have the call shapes that the vendors document; none of it was recorded on a device.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_models
import pytest

from pytest_portability import models
from pytest_portability.errors import BuildError
from pytest_portability.kernels import KernelPath
from pytest_portability.runtimes import Request, migraphx_runs, onnxruntime_layers
from pytest_portability.runtimes import onnxruntime as adapter
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes.migraphx_trace import END_OF_RUN
from pytest_portability.runtimes.onnxruntime_layers import ESTIMATED, NAMED, PLANNED, WAITED
from runtimes.subjects import mlp_inputs

VENDOR = Path(__file__).parents[1] / "vendor_outputs"
MLP = mlp_inputs(2)

Leave = Callable[[dict[str, str]], None]
Node = tuple[str, str]


class FakeOptions:
    """``SessionOptions`` as far as a trace sets them."""

    profile_file_prefix = ""

    def add_session_config_entry(self, name: str, value: str) -> None:
        """Nothing follows from it."""


class FakeSession:
    """Runs nothing, and leaves a profile in which the nodes were launched once in each run."""

    def __init__(self, options: FakeOptions, nodes: Iterable[Node]) -> None:
        self._file = Path(f"{options.profile_file_prefix}.json")
        self._nodes = tuple(nodes)
        self._runs = 0

    def run(self, names: None, feeds: models.Arrays) -> None:
        """Count."""
        del names, feeds
        self._runs += 1

    def end_profiling(self) -> str:
        """Write the profile."""
        events: list[dict[str, Any]] = []
        for start in range(0, 1000 * self._runs, 1000):
            events.append({"cat": "Session", "name": "model_run", "ts": start, "dur": 900})
            for number, (provider, op) in enumerate(self._nodes):
                args = {"provider": provider, "op_name": op}
                event = {"cat": "Node", "name": f"{op}_kernel_time", "ts": start + number + 1}
                events.append({**event, "dur": 20, "args": args})
        self._file.write_text(json.dumps(events), encoding="utf-8")
        return str(self._file)


class FakeOrt:
    """ONNX Runtime with one more provider, which compiles the graph into ``nodes``.

    Args:
        ep: the provider.
        nodes: provider and op type of what a session runs.
        leave: called with the provider's options for each session.
        unknown: a provider option that is refused.
    """

    SessionOptions = FakeOptions

    def __init__(
        self, ep: str, nodes: Iterable[Node], leave: Leave | None = None, unknown: str = ""
    ) -> None:
        self._ep, self._nodes = ep, nodes
        self._leave, self._unknown = leave, unknown

    def get_available_providers(self) -> list[str]:
        """What was compiled in."""
        return [self._ep, "CPUExecutionProvider"]

    def InferenceSession(  # noqa: N802 - ONNX Runtime's name
        self, source: object, options: FakeOptions, *, providers: Any, enable_fallback: int
    ) -> FakeSession:
        """Open one."""
        del source, enable_fallback
        ((_, given),) = providers
        if self._unknown in given:
            msg = f"Unknown option: {self._unknown}"
            raise RuntimeError(msg)
        if self._leave is not None:
            self._leave(given)
        return FakeSession(options, self._nodes)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KernelPath]:
    """A trace of a small model by a provider of a fake."""

    def traced(short: str, ort: FakeOrt, **options: str) -> KernelPath:
        monkeypatch.setattr(library, "load", lambda **_: ort)
        request = Request(
            model=models.load(onnx_models.mlp()),
            handle="gpu:0",
            platform="any",
            options={"provider": options},
        )
        return adapter.runtime(f"onnxruntime.{short}").trace(request, MLP, runs=2)

    return traced


def ops(path: KernelPath) -> dict[str, float | None]:
    """Op → share."""
    return {use.kernel.op: use.share for use in path.uses}


class TestTensorRT:
    """Its engines are read from the folder that the traced session was told to fill."""

    EP = "TensorrtExecutionProvider"
    NODE = (EP, "TensorrtExecutionProvider_TRTKernel_graph_torch_jit_1234_0_0")

    @staticmethod
    def leave(given: dict[str, str]) -> None:
        """An engine where the options say."""
        assert given["trt_engine_cache_enable"] == "1"
        Path(given["trt_engine_cache_path"], "graph.engine").write_bytes(b"e")

    @staticmethod
    def install(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
        """The package, whose inspector says this."""
        inspector = SimpleNamespace(get_engine_information=lambda _form: told)
        engine = SimpleNamespace(create_engine_inspector=lambda: inspector)
        opener = SimpleNamespace(deserialize_cuda_engine={b"e": engine}.get)
        package = SimpleNamespace(
            Logger=type("Logger", (), {"ERROR": 1, "__init__": lambda _self, _level: None}),
            Runtime=lambda _logger: opener,
            LayerInformationFormat=SimpleNamespace(JSON=2),
        )
        monkeypatch.setitem(sys.modules, "tensorrt", package)

    def test_layers_stand_in_place_of_the_engine(
        self, trace: Callable[..., KernelPath], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.install(monkeypatch, (VENDOR / "tensorrt_engine.json").read_text("utf-8"))
        path = trace("tensorrt", FakeOrt(self.EP, [self.NODE], self.leave))
        assert "CaskConvolution" in ops(path)
        assert "TensorrtExecutionProvider_TRTKernel_graph_torch_jit" not in ops(path)
        assert path.caveats == (
            "times of TensorrtExecutionProvider are launch times, so no shares",
        )

    def test_layers_that_are_only_named_stand_there_too_and_say_so(
        self, trace: Callable[..., KernelPath], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = ["Reformatting CopyNode for Input Tensor 0 to matmul0", "matmul0 + add0"]
        names += ["PWN(gelu0)", "{ForeignNode[matmul1...gelu1]}"]
        self.install(monkeypatch, json.dumps({"Layers": names}))
        path = trace("tensorrt", FakeOrt(self.EP, [self.NODE], self.leave))
        assert {use.kernel.op: use.kernel.absorbs for use in path.uses} == {
            "Reformat": (),
            "layer": ("Add", "MatMul"),
            "pointwise": ("Gelu",),
            "ForeignNode": ("Gelu", "MatMul"),
        }
        assert path.caveats == (
            "times of TensorrtExecutionProvider are launch times, so no shares",
            NAMED,
        )
        assert NAMED == (
            "TensorRT's engines tell the names of their layers only: neither types nor "
            "implementations are known"
        )

    def test_an_engine_that_is_not_told_stays_a_node_and_the_reason_is_said(
        self, trace: Callable[..., KernelPath]
    ) -> None:
        path = trace("tensorrt", FakeOrt(self.EP, [self.NODE]))
        assert len(path.uses) == 1
        assert path.caveats[-1] == (
            "TensorRT's engines are shown as one node each: no engine was left"
        )


class TestMIGraphX:
    """The model runs again in a process in which MIGraphX prints."""

    EP = "MIGraphXExecutionProvider"
    NODE = (EP, "MGXKernel_graph_main_graph_12345678901234567890_0")

    @pytest.fixture(autouse=True)
    def _printed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = (VENDOR / "migraphx_trace.txt").read_text("utf-8")

        def apart(_function: object, *args: Any, environment: dict[str, str]) -> str:
            assert environment == {"MIGRAPHX_TRACE_EVAL": "1"}
            request, inputs, runs = args
            assert request.handle == "gpu:0"
            assert inputs is MLP
            return "".join([f"{run}{END_OF_RUN}\n"] * (runs + 1))

        monkeypatch.setattr(onnxruntime_layers, "_apart", apart)

    def test_instructions_stand_in_place_of_the_program(
        self, trace: Callable[..., KernelPath]
    ) -> None:
        path = trace("migraphx", FakeOrt(self.EP, [self.NODE]))
        assert ops(path)["mlir_convolution_add_relu"] == pytest.approx(0.5)
        assert path.evidence == "executed"
        assert path.caveats == (WAITED,)

    def test_beside_nodes_of_others_there_are_no_shares(
        self, trace: Callable[..., KernelPath]
    ) -> None:
        """The printed times are a whole of their own, in which each instruction was waited for."""
        nodes = [self.NODE, ("CPUExecutionProvider", "NonZero"), (self.EP, "MemcpyToHost")]
        path = trace("migraphx", FakeOrt(self.EP, nodes))
        assert {"NonZero", "MemcpyToHost", "mlir_convolution_add_relu"} < ops(path).keys()
        assert set(ops(path).values()) == {None}
        assert path.caveats == (f"times of {self.EP} are launch times, so no shares",)

    def test_silence_leaves_the_node_and_says_so(
        self, trace: Callable[..., KernelPath], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnxruntime_layers, "_apart", lambda *_, **__: f"{END_OF_RUN}\n" * 3)
        path = trace("migraphx", FakeOrt(self.EP, [self.NODE]))
        assert [*ops(path)] == ["MGXKernel_graph_main_graph"]
        assert path.caveats[-1] == (
            "MIGraphX's programs are shown as one node each: it printed no instruction, though "
            "MIGRAPHX_TRACE_EVAL asked for it"
        )

    def test_a_graph_of_which_it_took_nothing_is_not_run_again(
        self, trace: Callable[..., KernelPath], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnxruntime_layers, "_apart", None)
        path = trace("migraphx", FakeOrt(self.EP, [("CPUExecutionProvider", "Gemm")]))
        assert [*ops(path)] == ["Gemm"]
        assert path.caveats == ()


class TestCoreML:
    """The plan of the model that the traced session leaves is read in a process of its own."""

    EP = "CoreMLExecutionProvider"
    NODE = (EP, "CoreML_12345678901234567890_0")

    @pytest.fixture
    def leave(self, monkeypatch: pytest.MonkeyPatch) -> Leave:
        monkeypatch.syspath_prepend(VENDOR / "packages")
        told = json.loads((VENDOR / "coreml_plan.json").read_text("utf-8"))

        def leave(given: dict[str, str]) -> None:
            model = Path(given["ModelCacheDirectory"], "0_static_mlprogram/model/m.mlmodelc")
            model.mkdir(parents=True)
            program = (VENDOR / "coreml_model.mil").read_text("utf-8")
            (model / "model.mil").write_text(program, encoding="utf-8")
            plan = {"program": told["program"]}
            (model / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

        return leave

    def test_planned_operations_stand_in_place_of_the_model(
        self, trace: Callable[..., KernelPath], leave: Leave
    ) -> None:
        path = trace("coreml", FakeOrt(self.EP, [self.NODE], leave))
        assert ops(path) == {"cast": 0.05, "conv": 0.625, "relu": 0.075, "linear": 0.25}
        assert path.evidence == "planned"
        assert path.caveats == (ESTIMATED, PLANNED)

    def test_the_units_of_the_session_are_those_of_the_plan(
        self, trace: Callable[..., KernelPath], leave: Leave
    ) -> None:
        path = trace("coreml", FakeOrt(self.EP, [self.NODE], leave), MLComputeUnits="CPUOnly")
        assert {use.kernel.provider for use in path.uses} == {f"{self.EP}:CPU"}

    def test_beside_nodes_that_ran_the_whole_path_is_planned_and_says_which_part(
        self, trace: Callable[..., KernelPath], leave: Leave
    ) -> None:
        nodes = [self.NODE, ("CPUExecutionProvider", "NonZero")]
        path = trace("coreml", FakeOrt(self.EP, nodes, leave))
        assert set(ops(path).values()) == {None}
        assert path.evidence == "planned"
        assert path.caveats == (f"times of {self.EP} are launch times, so no shares", PLANNED)
        assert "nodes of other providers were seen to run" in PLANNED

    def test_an_onnx_runtime_without_the_option_shows_the_node(
        self, trace: Callable[..., KernelPath]
    ) -> None:
        path = trace("coreml", FakeOrt(self.EP, [self.NODE], unknown="ModelCacheDirectory"))
        assert [*ops(path)] == ["CoreML"]
        assert path.evidence == "executed"
        assert path.caveats[-1] == (
            "Core ML's models are shown as one node each: no compiled model was left "
            "(ModelCacheDirectory needs onnxruntime 1.21)"
        )


def test_a_process_that_takes_too_long_is_a_reason_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is not the one that the ini key of items sets."""
    monkeypatch.setattr(onnxruntime_layers, "LIMIT_S", 0.2)
    with pytest.raises(BuildError, match=r"time limit of 0.2 s; the child was killed$"):
        onnxruntime_layers._apart(time.sleep, 60)


def test_a_model_runs_again_in_a_process_of_its_own() -> None:
    """The CPU provider prints nothing: what is left are the ends of a warm-up and two runs."""
    pytest.importorskip("onnxruntime")
    request = Request(model=models.load(onnx_models.mlp()), handle="cpu", platform="cpu")
    text = onnxruntime_layers._apart(migraphx_runs.printed, request, MLP, 2, "cpu")
    assert text == f"{END_OF_RUN}\n" * 3


def test_a_provider_that_nobody_tells_of_is_traced_as_it_is(
    trace: Callable[..., KernelPath],
) -> None:
    path = trace("qnn", FakeOrt("QNNExecutionProvider", [("QNNExecutionProvider", "QNN_1_0")]))
    assert [*ops(path)] == ["QNN"]
    assert path.caveats == ("times of QNNExecutionProvider are launch times, so no shares",)
