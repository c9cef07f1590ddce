"""What is particular to ONNX Runtime: fusions, options, precisions, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from pytest_portability.runtimes import Observed, Request, load
from pytest_portability.runtimes import onnxruntime as adapter
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


def _arena_peak(runtime: adapter.OnnxRuntime, batch: int) -> int:
    runtime.trace(request(onnx_models.mlp()), mlp_inputs(batch))
    if runtime.arena_peak_bytes is None:
        pytest.skip("the profiles of this onnxruntime do not tell memory")
    return runtime.arena_peak_bytes


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
        first, again, large = (_arena_peak(runtime, batch) for batch in (2, 2, 64))
        assert first == again
        assert large - first >= 62 * 4 * 64 * 4

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

    def test_a_trace_works_where_a_child_that_dies_leaves_nothing_for_good(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A copy of the model is in it: in the folder of the run, which the run takes away."""
        folders: list[Path] = []
        real = adapter._profiled

        def profiled(*args: Any, **more: Any) -> Any:
            folders.append(args[4])
            return real(*args, **more)

        monkeypatch.setattr(adapter, "_profiled", profiled)
        cache = tmp_path / "run" / "cache"
        request = Request(
            model=models.load(onnx_models.mlp()),
            handle="cpu",
            platform="cpu",
            cache_dir=str(cache),
        )
        adapter.runtime("onnxruntime.cpu").trace(request, MLP)
        assert [folder.parent for folder in folders] == [cache]
        assert list(cache.iterdir()) == []

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

    @pytest.mark.parametrize(
        ("options", "threads"),
        [
            ({"intra_op_num_threads": 3}, 3),
            ({"intra_op_num_threads": 3, "inter_op_num_threads": 4}, 3),
            (
                {
                    "intra_op_num_threads": 3,
                    "inter_op_num_threads": 4,
                    "execution_mode": "parallel",
                },
                3,
            ),
            ({"intra_op_num_threads": 3, "execution_mode": "parallel"}, None),
        ],
    )
    def test_threads_are_counted_and_not_believed(
        self, options: dict[str, Any], threads: int | None
    ) -> None:
        """The pool between operators is not among them; of unknown size it hides them."""
        build = adapter.runtime("onnxruntime.cpu").build(
            request(onnx_models.mlp(), options=options)
        )
        assert build.observed().threads == threads

    def test_an_option_that_does_not_take_effect_shows(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A session that started one thread has two, whatever was asked for."""
        counts = iter([10, 11])
        process = SimpleNamespace(num_threads=lambda: next(counts))
        monkeypatch.setattr("psutil.Process", lambda: process)
        asked = request(onnx_models.mlp(), options={"intra_op_num_threads": 7})
        assert adapter.runtime("onnxruntime.cpu").build(asked).observed().threads == 2

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

    def test_bound_outputs_are_those_of_a_plain_run(self) -> None:
        """Devices with memory of their own are fed through a binding; tried here on the CPU's."""
        options = ort.SessionOptions()
        proto = onnx_models.mlp()
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        provider = replace(providers.named("cpu"), memory="cpu")
        late = ort.RunOptions()
        late.add_run_config_entry("disable_synchronize_execution_providers", "1")
        build = adapter.OnnxRuntimeBuild(provider, session, Observed(), 0, late)
        for inputs in (MLP, mlp_inputs(3)):
            build.stage(inputs)
            build.launch()
            build.launch()
            build.synchronize()
            for outputs in (build.fetch(), build.predict(inputs)):
                np.testing.assert_allclose(outputs["y"], mlp_outputs(inputs)["y"], atol=1e-5)
        other = build.predict(mlp_inputs(5))
        assert other["y"].shape == (5, 4, 64)
        assert build.fetch()["y"].shape == (3, 4, 64)
        build.close()

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
            with pytest.raises(DoesNotFit, match=r"could not run the model"):
                build.predict({"n": np.array([size])})

    def test_an_op_set_this_onnx_runtime_does_not_know_is_a_model_error(self) -> None:
        """``onnx`` may be newer than ``onnxruntime``."""
        made = onnx_models.mlp()
        made.opset_import[0].version = 99
        asked = Request(model=models.Model(kind="onnx", value=made), handle="cpu", platform="cpu")
        with pytest.raises(ModelError, match=r"Opset 99.*install a newer onnxruntime"):
            adapter.runtime("onnxruntime.cpu").build(asked)

    def test_another_refusal_is_a_build_error_in_onnx_runtime_s_words(self) -> None:
        """Without the paths of the machine it was built on."""
        made = onnx_models.mlp()
        made.graph.node[2].op_type = "Foo"
        with pytest.raises(
            BuildError, match=r"could not build the model: .*No Op registered for Foo"
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
        with pytest.raises(BuildError, match=r"the build is closed"):
            build.launch()

    def test_a_provider_that_is_not_here_is_unavailable(self) -> None:
        """ONNX Runtime itself would warn and run on the CPU."""
        with pytest.raises(
            RuntimeUnavailable, match=r"onnxruntime.qnn: .*no such provider is here.*has: .*cpu"
        ):
            adapter.runtime("onnxruntime.qnn").build(request(onnx_models.mlp()))

    def test_a_torch_module_has_to_be_exported_first(self) -> None:
        """Conversion is another stage's work."""
        model = models.Model(kind="torch", value=None)
        with pytest.raises(Unsupported, match=r"builds ONNX models; this is a torch model"):
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
        with pytest.raises(Unsupported, match=r"fp16: the device says that it computes .*FP32"):
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
        with pytest.raises(RuntimeUnavailable, match=r"has no device 'gpu:7'; it has: .*cpu"):
            openvino.build(asked)


def _openvino_cpu_has(capability: str) -> bool:
    found = [
        entry.ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split()
        for entry in ort.get_ep_devices()
        if entry.ep_name == "OpenVINOExecutionProvider"
    ]
    return any(capability in capabilities for capabilities in found)
