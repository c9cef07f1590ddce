"""What MIGraphX prints, parsed and captured.

``vendor_outputs/migraphx_trace.txt`` was written by hand to what MIGraphX's source prints with
MIGRAPHX_TRACE_EVAL=1: it was not recorded on a device.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_portability.kernel_changes import diff
from pytest_portability.kernels import KernelPath, KernelUse, effective_precision
from pytest_portability.runtimes import migraphx_runs
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes.migraphx_trace import END_OF_RUN, uses

RUN = (Path(__file__).parents[1] / "vendor_outputs" / "migraphx_trace.txt").read_text("utf-8")
SOURCE = ("Conv", "Add", "Relu", "Flatten", "MatMul", "Softmax")


def runs(*texts: str) -> str:
    """Texts of runs as they are captured, a warm-up before them."""
    return "".join(f"{text}{END_OF_RUN}\n" for text in (texts[0], *texts))


def kernel(
    op: str,
    milliseconds: float = 1.0,
    *,
    inputs: str = "@1",
    made: str = "half_type, {8}, {1}",
    name: str = "@2",
) -> str:
    """One instruction that runs a code object."""
    attributes = f"code_object=4416,symbol_name={op},global=6144,local=1024,output_arg=1,"
    call = f"{name} = gpu::code_object[{attributes}]({inputs}) -> {made}"
    return f"Run instruction: {call}\nTime: 0.001ms, {milliseconds}ms\n"


def only(text: str, source: tuple[str, ...] = SOURCE) -> KernelUse:
    """The one kernel of a run."""
    (use,) = uses(runs(text), source)
    return use


def test_instructions_are_kernels_with_types_roles_and_what_they_fuse() -> None:
    found = {use.kernel.op: use.kernel for use in uses(runs(RUN), SOURCE)}
    assert {k: (v.role, v.precision, v.absorbs) for k, v in found.items()} == {
        "convert_kernel": ("move", "fp32", ()),
        "mlir_convolution_add_relu": ("compute", "fp16", ("Add", "Conv", "Relu")),
        "gemm": ("compute", "fp16", ("MatMul",)),
        "reduce_max_sub_exp_reduce_sum_div_convert_kernel": ("compute", "fp16", ()),
    }
    assert {kernel.provider for kernel in found.values()} == {"MIGraphXExecutionProvider"}


def test_views_literals_and_memory_launch_nothing_and_have_no_share() -> None:
    """The time taken is the second, when the device was done: the first is that of the launch."""
    shares = {use.kernel.op: use.share for use in uses(runs(RUN), SOURCE)}
    assert sum(share or 0 for share in shares.values()) == pytest.approx(1)
    assert shares["mlir_convolution_add_relu"] == pytest.approx(0.1 / 0.2)
    assert shares["gemm"] == pytest.approx(0.06 / 0.2)


def test_launches_are_of_one_inference_and_times_the_median_of_the_runs() -> None:
    """A neighbour spoils one run; the warm-up is left out."""
    one = kernel("mlir_dot", 1) + kernel("mlir_dot", 1) + kernel("add_kernel", 2)
    spoiled = kernel("mlir_dot", 900) + kernel("mlir_dot", 1) + kernel("add_kernel", 2)
    warm_up = kernel("mlir_dot", 7) * 9
    text = "".join(f"{run}{END_OF_RUN}\n" for run in (warm_up, one, spoiled, one))
    found = {use.kernel.op: use for use in uses(text, SOURCE)}
    assert found["mlir_dot"].launches == 2
    assert found["mlir_dot"].share == pytest.approx(0.5)
    assert found["add_kernel"].launches == 1


def test_a_run_that_was_cut_short_does_not_count() -> None:
    text = runs(kernel("mlir_dot")) + kernel("add_kernel")
    assert [use.kernel.op for use in uses(text, SOURCE)] == ["mlir_dot"]


def test_the_same_program_compiled_again_is_the_same_path() -> None:
    """Positions, sizes of code, places in memory and tuned solutions change from build to build."""
    again = RUN.replace("@1", "main:@7").replace("code_object=8920", "code_object=9104")
    again = again.replace("solution_idx=-1738", "solution_idx=12").replace("offset=0", "offset=64")
    again = again.replace("symbol_name=convert_kernel", "symbol_name=convert_kernel_0_12")
    assert uses(runs(again), SOURCE) == uses(runs(RUN), SOURCE)


@pytest.mark.parametrize(
    ("made", "precision"),
    [
        ("half_type, {8}, {1}", "fp16"),
        ("bf16_type, {8}, {1}", "bf16"),
        ("float_type, {8}, {1}", "fp32"),
        ("double_type, {8}, {1}", "fp64"),
        ("int8_type, {8}, {1}", "int8"),
        ("int64_type, {8}, {1}", "int64"),
        ("fp8e4m3fnuz_type, {8}, {1}", "fp8"),
        ("dynamic, half_type, {[1..8], 16}", "fp16"),
        ("[float_type, {8}, {1}, int64_type, {8}, {1}]", "fp32"),
        ("half_type, {8}, {1}, target_id=1 # Conv_0, Relu_1", "fp16"),
    ],
)
def test_the_precision_is_the_type_of_the_shape(made: str, precision: str) -> None:
    assert only(kernel("add_kernel", made=made)).kernel.precision == precision


def test_a_product_of_int8_that_writes_floats_is_one_of_int8() -> None:
    read = kernel("quantizelinear_kernel", made="int8_type, {8}, {1}", name="@1")
    text = read + kernel("mlir_quant_dot_dequantizelinear", made="float_type, {8}, {1}")
    found = {use.kernel.op: use.kernel for use in uses(runs(text), SOURCE)}
    assert found["quantizelinear_kernel"].role == "move"
    product = found["mlir_quant_dot_dequantizelinear"]
    assert (product.role, product.precision, product.absorbs) == ("compute", "int8", ("MatMul",))


def test_an_instruction_that_runs_others_is_no_kernel_of_its_own() -> None:
    """Its time is theirs."""
    inner = kernel("add_kernel", 2, name="then:@1") + kernel("mul_kernel", 1, name="then:@2")
    begin = "Run instruction: @4 = if(@3), [then, else] -> float_type, {8}, {1}\n"
    found = uses(runs(f"{begin}{inner}Time: 0.1ms, 9ms\n"), SOURCE)
    assert {use.kernel.op: use.share for use in found} == {
        "add_kernel": pytest.approx(2 / 3),
        "mul_kernel": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize(
    ("call", "role"),
    [
        ("hip::copy_to_gpu(@1)", "move"),
        ("hip::fill[value=0](@1)", "move"),
        ("gpu::code_object[symbol_name=contiguous_kernel,](@1)", "move"),
        ("gpu::code_object[symbol_name=gather_kernel,](@1)", "layout"),
        ("gpu::code_object[symbol_name=concat_add_kernel,](@1)", "compute"),
        ("gpu::topk[k=5,axis=1](@1)", "compute"),
        ("nonmaxsuppression[center_point_box=0](@1)", "compute"),
    ],
)
def test_the_role_is_told_by_the_name(call: str, role: str) -> None:
    text = f"Run instruction: @2 = {call} -> float_type, {{8}}, {{1}}\nTime: 1ms, 1ms\n"
    assert only(text).kernel.role == role


def test_what_a_kernel_absorbs_is_in_the_source() -> None:
    """MIGraphX takes a Gelu apart: its parts are no ops of this graph."""
    assert only(kernel("mlir_dot_add_mul_erf_add_mul"), ("Gemm", "Gelu")).kernel.absorbs == (
        "Gemm",
    )
    reduced = only(kernel("reduce_sum_add_kernel"), ("ReduceSum", "Add")).kernel
    assert reduced.absorbs == ("Add", "ReduceSum")


def test_the_effective_precision_is_that_of_the_products() -> None:
    text = kernel("mlir_dot_add", 1) + kernel("softmax_kernel", 5, made="float_type, {8}, {1}")
    path = KernelPath(runtime="onnxruntime.migraphx", uses=uses(runs(text), ("Einsum",)))
    assert effective_precision(path) == "fp16"


def test_a_fusion_that_is_lost_is_one_change() -> None:
    fused = uses(runs(kernel("mlir_dot_add")), ("MatMul", "Add"))
    apart = uses(runs(kernel("mlir_dot") + kernel("add_kernel")), ("MatMul", "Add"))
    source = {"MatMul": 1, "Add": 1}
    before, after = (
        KernelPath(runtime="onnxruntime.migraphx", uses=u, source=source) for u in (fused, apart)
    )
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert "mlir_dot_add ×1 no longer fused" in change.summary


@pytest.mark.parametrize("text", ["", f"{END_OF_RUN}\n" * 3, f"hello\n{END_OF_RUN}\n"])
def test_silence_is_an_error(text: str) -> None:
    reason = "it printed no instruction, though MIGRAPHX_TRACE_EVAL asked for it"
    with pytest.raises(ValueError, match=reason):
        uses(text, SOURCE)


# --- capturing ----------------------------------------------------------------------------------


class Session:
    """A session that prints as C++ does: to the file descriptor, whatever Python makes of it."""

    def run(self, names: None, feeds: dict[str, Any]) -> None:
        """Print one run."""
        assert names is None
        assert feeds == {}
        os.write(1, RUN.encode())


def fake_session(monkeypatch: pytest.MonkeyPatch, run: Callable[..., None]) -> None:
    """Have ``printed`` open a session with that ``run``."""
    for name in ("choose", "in_force", "session_options"):
        monkeypatch.setattr(migraphx_runs, name, lambda *_: SimpleNamespace(provider=None))
    monkeypatch.setattr(library, "load", lambda **_: None)
    monkeypatch.setattr(migraphx_runs, "open_session", lambda *_: SimpleNamespace(run=run))


def test_what_is_printed_below_python_is_kept_run_by_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_session(monkeypatch, Session().run)
    text = migraphx_runs.printed(SimpleNamespace(), {}, 2)  # type: ignore[arg-type] # passed on
    assert text == f"{RUN}{END_OF_RUN}\n" * 3
    os.write(1, b"after")
    assert capfd.readouterr().out == "after"


def test_standard_output_is_restored_whatever_happens(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryFile() as file:
        with (
            contextlib.suppress(KeyError),
            migraphx_runs.standard_output_to(file.fileno()),
        ):
            os.write(1, b"kept")
            raise KeyError
        os.write(1, b"shown")
        file.seek(0)
        assert file.read() == b"kept"
    assert capfd.readouterr().out == "shown"
