"""Profiles of providers that are not here, and what is derived from an optimised graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest

from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.runtimes import onnxruntime_profile as profile


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

    def test_a_run_that_a_neighbour_spoilt_does_not_count(self) -> None:
        """Means over runs called kernels four times as slow that were not."""
        cpu = "CPUExecutionProvider"
        events = [run(0, 100)]
        for begin, slow in ((1000, 1), (2000, 40), (3000, 1)):
            events += [
                run(begin, 20 + 5 * slow),
                node("a", "MatMul", cpu, begin + 1, 10),
                node("b", "Gelu", cpu, begin + 12, 5 * slow),
            ]
        uses = {u.kernel.op: u for u in profile.read(events, [cpu]).uses}
        assert uses["MatMul"].share == pytest.approx(10 / 25)
        assert uses["Gelu"].share == pytest.approx(5 / 25)
        assert uses["Gelu"].launches == 1

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

    @pytest.mark.parametrize(
        ("op", "provider", "compiling"),
        [
            ("TRTKernel_graph_main_12345678901_0_0", "TensorrtExecutionProvider", True),
            ("MIGraphXKernel", "MIGraphXExecutionProvider", True),
            ("DmlFusedNode_0_41", "DmlExecutionProvider", False),
        ],
    )
    def test_a_compiled_node_does_not_say_what_it_computes_in(
        self, op: str, provider: str, compiling: bool
    ) -> None:
        """Its tensors are float for an fp16 engine, too; copies beside it keep their type."""
        events = [
            run(0, 9),
            node("n", op, provider, 1, 3, output_type_shape=[{"float": [1]}]),
            node("m", "MemcpyToHost", provider, 5, 1, output_type_shape=[{"float": [1]}]),
        ]
        found = profile.read(events, [], {}, [provider] if compiling else [])
        assert {u.kernel.role: u.kernel.precision for u in found.uses} == {
            "compute": "",
            "move": "fp32",
        }
        path = KernelPath(runtime="onnxruntime", uses=found.uses)
        assert effective_precision(path) == ""

    @pytest.mark.parametrize(
        "dtype", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]
    )
    def test_every_form_of_fp8_is_fp8(self, dtype: str) -> None:
        """A product in it leaves wider floats behind, as one of integers does."""
        cuda, half = "CUDAExecutionProvider", [{"float16": [1]}]
        events = [
            run(0, 9),
            node("q", "QuantizeLinear", cuda, 1, 1, output_type_shape=[{dtype: [1]}]),
            node("g", "GemmFloat8", cuda, 2, 1, input_type_shape=[{dtype: [1]}, {dtype: [1]}]),
            node("d", "DequantizeLinear", cuda, 3, 1, input_type_shape=[{dtype: [1]}]),
            node("a", "Add", cuda, 4, 1, input_type_shape=half),
        ]
        found = {u.kernel.op: u.kernel.precision for u in profile.read(events, [cuda]).uses}
        assert found == {
            "QuantizeLinear": "fp8",
            "GemmFloat8": "fp8",
            "DequantizeLinear": "fp16",
            "Add": "fp16",
        }

    def test_the_kernels_of_a_compiled_node_tell(self) -> None:
        """Roles and precisions are those of OpenVINO's own layers."""
        args = {"ep": "OpenVINOExecutionProvider", "parent_ort_event_name": "n_kernel_time"}
        layers = [
            ("FullyConnected", "brgemm_avx512_bf16"),
            ("Concatenation", "unknown_f32"),
            ("Reorder", "jit_f32"),
        ]
        events = [
            run(0, 9),
            node("n", "OpenVINOExecutionProvider_1_0", "OpenVINOExecutionProvider", 1, 3),
            *(
                {
                    "cat": "Kernel",
                    "name": f"OV::{kind}",
                    "ts": 2,
                    "dur": 1,
                    "args": {**args, "ov_node_type": kind, "ov_exec_type": made},
                }
                for kind, made in layers
            ),
        ]
        uses = profile.read(events, [], {}, ["OpenVINOExecutionProvider"]).uses
        assert [(u.kernel.op, u.kernel.role, u.kernel.precision) for u in uses] == [
            ("Concatenation", "layout", ""),
            ("FullyConnected", "compute", "bf16"),
            ("Reorder", "move", "fp32"),
        ]

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

    def test_a_fused_node_is_known_through_the_reshape_behind_it(self) -> None:
        """A product of three dimensions becomes a Gemm between two Reshapes."""
        optimised = onnx_models.model(
            [
                onnx.helper.make_node("Reshape", ["x", "flat"], ["new1"], name="before"),
                onnx.helper.make_node("Gemm", ["new1", "w0", "b0"], ["new2"], name="gemm"),
                onnx.helper.make_node("Reshape", ["new2", "back"], ["a0"], name="after"),
                onnx.helper.make_node("Gelu", ["a0"], ["y"], name="gelu"),
            ],
            {"x": ["batch", 4, 64]},
            {"y": ["batch", 4, 64]},
            [
                onnx_models.tensor("w0", 64, 64),
                onnx_models.tensor("b0", 64),
                onnx_models.constant("flat", np.array([-1, 64])),
                onnx_models.constant("back", np.array([-1, 4, 64])),
            ],
        )
        found = profile.fused(onnx_models.mlp(1), optimised)
        assert found == {
            ("Reshape", "before"): (),
            ("Gemm", "gemm"): ("Add", "MatMul"),
            ("Reshape", "after"): (),
            ("Gelu", "gelu"): ("Gelu",),
        }
