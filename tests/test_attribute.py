"""One mechanism is one cause, the one that was asked for comes first, and the rest is admitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from synthetic import (
    EP,
    FIGURES,
    KEY,
    MODEL,
    PARITY,
    RECORD,
    figures,
    measurement,
    path,
    record,
    slower,
    steady,
    use,
)

from pytest_portability.attribute import KINDS, Cause, attribute, lost_time
from pytest_portability.compare import decide, error
from pytest_portability.kernels import KernelPath
from pytest_portability.models import TensorSpec
from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Record
from pytest_portability.runtimes import Observed

SOURCE = {"MatMul": 12, "Add": 8, "Gelu": 2, "LayerNormalization": 4}
FUSED = path(use("MatMul", 12, 0.8), use("BiasGelu", 2, 0.1), use("Add", 6, 0.1), source=SOURCE)
# In 1.25 times the time MatMul and six of Add take what they took; the rest came with the fusion.
UNFUSED = path(
    use("MatMul", 12, 0.8 / 1.25),
    use("Add", 8, 0.1 * 8 / 6 / 1.25),
    use("Gelu", 2, 1 - 0.8 / 1.25 - 0.1 * 8 / 6 / 1.25),
    source=SOURCE,
)


@dataclass(frozen=True)
class Said:
    """A parity outcome made up for a test."""

    failures: tuple[str, ...] = ()
    stale: bool = False
    changed_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def causes(check: Record, baseline: Record = RECORD, *, log: str = "", **more: Any) -> list[Cause]:
    more.setdefault("measurement", measurement())
    found = attribute(decide(check, baseline, **more), log=log)
    assert all(cause.kind in KINDS for cause in found)
    assert sum(cause.share or 0.0 for cause in found) <= 1 + 1e-9
    return list(found)


def kinds(found: list[Cause]) -> list[str]:
    return [cause.kind for cause in found]


def test_an_unchanged_build_has_no_causes_and_neither_has_a_missing_record() -> None:
    assert causes(RECORD) == []
    assert attribute(decide(RECORD, None)) == ()
    assert attribute(error("died")) == ()


# --- the kernel path ------------------------------------------------------------------------------


def test_a_lost_fusion_explains_the_time_its_parts_take_beyond_it() -> None:
    (cause,) = causes(slower(1.25, path=UNFUSED), record(path=FUSED))
    assert cause.kind == "fusion"
    assert cause.summary == "BiasGelu ×2 no longer fused: now Gelu ×2, Add ×2"
    assert cause.share == pytest.approx(1.0)


def test_toolchain_opset_and_exporter_are_the_context_of_a_mechanism() -> None:
    model = replace(MODEL, opset={"": 21}, framework="pytorch 2.14.0", graph="g2")
    check = slower(1.25, path=UNFUSED, toolchain={"onnxruntime": "1.32.0"}, model=model)
    first, *others = causes(check, record(path=FUSED))
    assert first.kind == "fusion"
    assert first.evidence == (
        (
            "changed with it: onnxruntime 1.31.1 → 1.32.0; op-set 20 → 21; "
            "exporter pytorch 2.13.0 → pytorch 2.14.0; the model's graph"
        ),
    )
    assert "toolchain" not in kinds(others)


def test_a_slower_machine_is_counted_to_nobody() -> None:
    """The same builds on a machine of 0.6 of the clock: the same shares of the loss."""
    times = figures(steady(12.5), steady(12.5), yardstick_s=0.0017)
    (cause,) = causes(record(figures=times, path=UNFUSED), record(path=FUSED))
    assert cause.share == pytest.approx(1.0)


def test_nodes_on_another_provider_take_their_copies_with_them() -> None:
    before = path(use("MatMul", 12, 0.9, provider="CUDA"), use("Gather", 4, 0.1, provider="CUDA"))
    after = path(
        use("MatMul", 12, 0.6, provider="CUDA"),
        use("Gather", 4, 0.3),
        use("MemcpyToHost", 2, 0.1, role="move"),
    )
    log = "warming up\nFalling back to ['CPUExecutionProvider']\n"
    first, *_ = causes(slower(1.5, path=after), record(path=before), log=log)
    assert first.kind == "fallback"
    assert first.summary == f"CUDA → {EP}: Gather ×4"
    assert first.share == pytest.approx((0.4 * 1.5 - 0.1) / 0.5)
    assert first.evidence == (
        "copies and casts: MemcpyToHost ×0 → ×2",
        "Falling back to ['CPUExecutionProvider']",
    )


def test_nodes_that_moved_are_seen_in_the_assignment_where_the_path_is_silent() -> None:
    check = slower(1.5, providers={"CUDA": 44, EP: 4})
    (cause,) = causes(check, record(providers={"CUDA": 48}))
    assert (cause.kind, cause.share) == ("fallback", None)
    assert cause.summary == f"CUDA 48 → 44 nodes, {EP} 0 → 4 nodes"


def test_another_precision_is_the_cause_of_its_kernels_and_casts() -> None:
    before = path(use("FullyConnected", 9, 1.0, precision="fp32", implementation="brgemm_f32"))
    after = path(
        use("FullyConnected", 9, 0.8, precision="bf16", implementation="brgemm_bf16"),
        use("Convert", 18, 0.2, role="move"),
    )
    first, *others = causes(
        slower(1.7, path=after, effective="bf16"), record(path=before, effective="fp32")
    )
    assert first.kind == "precision"
    assert first.summary == "fp32 → bf16: FullyConnected ×9"
    assert first.share == pytest.approx(1.0)
    assert others == []


def test_layout_operations_that_appeared_are_one_cause() -> None:
    after = path(use("Conv", 9, 0.5), use("Transpose", 18, 0.5, role="layout"))
    (cause,) = causes(slower(2.0, path=after), record(path=path(use("Conv", 9, 1.0))))
    assert cause.kind == "layout"
    assert cause.share == pytest.approx(1.0)


def test_more_launches_of_the_same_kernel_are_the_graphs_if_its_source_grew() -> None:
    before = path(use("MatMul", 25, 1.0), source={"MatMul": 25})
    after = path(use("MatMul", 33, 1.0), source={"MatMul": 33})
    (cause,) = causes(slower(33 / 25, path=after), record(path=before))
    assert cause.kind == "graph"
    assert cause.summary == "more launches: MatMul ×25 → ×33"
    assert cause.share == pytest.approx(1.0)
    again = replace(after, source={}), replace(before, source={})
    (cause,) = causes(slower(33 / 25, path=again[0]), record(path=again[1]))
    assert cause.kind == "launches"


def test_a_compiler_that_declined_takes_in_the_kernels_that_eager_mode_runs() -> None:
    before = record(
        path=path(use("cpp_fused_gelu", 3, 1.0, provider="inductor")), compiled=True, graph_breaks=0
    )
    after = path(use("gelu", 3, 0.5, provider="aten:cpu"), use("add", 9, 0.5, provider="aten:cpu"))
    check = slower(2.0, path=after, compiled=False, graph_breaks=0)
    first, *others = causes(check, before, log="BackendCompilerFailed: no g++")
    assert first.kind == "launches"
    assert first.share == pytest.approx(1.0)
    assert first.summary == "the compiler declined and the model ran eagerly"
    assert first.evidence[-1] == "BackendCompilerFailed: no g++"
    assert others == []


def test_a_compiler_that_left_a_part_eager_is_not_said_to_have_declined() -> None:
    before = record(compiled=True, graph_breaks=0, providers={"inductor": 60})
    check = slower(2.0, compiled=False, graph_breaks=1, providers={"inductor": 3})
    asked = measurement(observed=Observed(asked_provider="inductor"))
    first, *_ = causes(check, before, measurement=asked)
    assert first.kind == "launches"
    assert first.summary == "the compiler left part of the model eager"


def test_where_the_outputs_leave_the_reference_is_evidence_of_the_first_cause() -> None:
    where = "first to diverge of 12 nodes: Softmax (output 'p': …)"
    failing = ParityVerdict(faithful=False, same_model=None, failures=("output 'y': …",))
    other = record(effective="bf16")
    held = decide(other, RECORD, parity=failing)
    first, *_ = attribute(held, diverges=where)
    assert first.kind == "precision"
    assert first.evidence[0] == where
    (alone,) = attribute(decide(other, None, parity=failing), diverges=where)
    assert (alone.kind, alone.summary) == ("unexplained", where)


def test_graph_breaks_of_unknown_time_are_a_cause_without_share() -> None:
    (cause,) = causes(slower(3.0, graph_breaks=5), record(graph_breaks=0))
    assert (cause.kind, cause.summary, cause.share) == ("launches", "graph breaks: 0 → 5", None)


def test_the_same_kernel_that_took_longer_is_a_cause() -> None:
    before = path(use("MatMul", 12, 0.5), use("Softmax", 2, 0.5))
    after = path(use("MatMul", 12, 0.75), use("Softmax", 2, 0.25))
    first, *_ = causes(
        slower(2.0, path=after, toolchain={"onnxruntime": "1.32.0"}), record(path=before)
    )
    assert first.kind == "kernel"
    assert first.share == pytest.approx(1.0)
    assert first.summary == "the same kernels are slower: MatMul ×12 took 3 × as long"
    assert "onnxruntime 1.31.1 → 1.32.0" in first.evidence[-1]


def test_the_same_kernels_slower_on_other_weights_point_to_the_values() -> None:
    same = path(use("MatMul", 12, 0.9), use("Relu", 2, 0.1))
    model = replace(MODEL, weights="w2", tensors={**MODEL.tensors, "fc1.weight": "c"})
    first, *_ = causes(slower(200.0, path=same, model=model), record(path=same))
    assert first.kind == "data"
    assert "subnormal" in first.summary
    assert "weights that differ: fc1.weight" in first.evidence


# --- options, host, toolchain ---------------------------------------------------------------------


def test_an_option_is_the_one_cause_of_every_fusion_it_switched_off() -> None:
    check = slower(1.25, path=UNFUSED, options={"graph_optimization_level": "DISABLE_ALL"})
    first, *others = causes(check, record(path=FUSED))
    assert first.kind == "options"
    assert first.summary == "graph_optimization_level: ENABLE_ALL → DISABLE_ALL"
    assert first.evidence == ("BiasGelu ×2 no longer fused: now Gelu ×2, Add ×2",)
    assert first.share == pytest.approx(1.0)
    assert others == []


def test_fewer_threads_explain_a_purely_parallel_loss() -> None:
    check = slower(0.95, wall=1.6, threads=1, options={"intra_op_num_threads": "1"})
    base = record(threads=2, options={"intra_op_num_threads": "2"})
    (cause,) = causes(check, base)
    assert cause.kind == "options"
    assert cause.summary == "threads: 2 → 1, intra_op_num_threads: 2 → 1"
    assert cause.share == pytest.approx(1.0)
    assert "the processor waits" in cause.evidence[0]


def test_nodes_that_no_longer_run_side_by_side_explain_a_purely_parallel_loss() -> None:
    """ONNX Runtime's execution mode is no precision, as OpenVINO's hint of that name is."""
    check = slower(0.95, wall=1.6, options={"execution_mode": "sequential"})
    (cause,) = causes(check, record(options={"execution_mode": "parallel"}))
    assert cause.kind == "options"
    assert cause.summary == "execution_mode: parallel → sequential"
    assert cause.share == pytest.approx(1.0)


def test_a_capped_instruction_set_is_the_cause_of_other_implementations() -> None:
    before = path(use("Conv", 9, 1.0, precision="fp32", implementation="jit:avx512_core"))
    after = path(use("Conv", 9, 1.0, precision="fp32", implementation="jit:sse41"))
    check = slower(5.0, path=after, options={**RECORD.options, "ONEDNN_MAX_CPU_ISA": "SSE41"})
    (cause,) = causes(check, record(path=before))
    assert cause.summary == "ONEDNN_MAX_CPU_ISA: unset → SSE41"
    assert cause.share == pytest.approx(1.0)
    assert "jit:avx512_core → jit:sse41" in cause.evidence[0]


def test_an_option_that_can_do_nothing_of_the_kind_comes_after_what_has_evidence() -> None:
    check = slower(1.25, path=UNFUSED, options={**RECORD.options, "INFERENCE_PRECISION_HINT": "x"})
    assert kinds(causes(check, record(path=FUSED)))[:2] == ["fusion", "options"]


def test_another_backend_is_the_cause_of_the_nodes_it_did_not_take() -> None:
    before = record(options={"backend": "inductor"}, providers={"inductor": 60})
    check = slower(1.4, options={"backend": "eager"}, providers={"eager": 60})
    (cause,) = causes(check, before, measurement=None)
    assert (cause.kind, cause.summary) == ("options", "backend: inductor → eager")
    assert "inductor 60 → 0 nodes" in cause.evidence[0]


def test_a_precision_that_an_option_brought_is_named_with_the_option_as_evidence() -> None:
    hint = {"INFERENCE_PRECISION_HINT": "bf16"}
    check = record(effective="bf16", options=hint)
    (cause,) = causes(check, record(options={}), parity=Said(failures=("output 'y' differs",)))
    assert (cause.kind, cause.summary) == ("precision", "effective precision: fp32 → bf16")
    assert cause.evidence[0] == "INFERENCE_PRECISION_HINT: unset → bf16"


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("ReorderInput", "layout"),
        ("clone", "layout"),
        ("Cast", "precision"),
        ("DequantizeLinear", "quantization"),
        ("MemcpyToHost", "fallback"),
    ],
)
def test_copies_are_of_the_kind_of_what_they_do(op: str, kind: str) -> None:
    before, after = (
        path(use("Conv", 9, 1.0)),
        path(use("Conv", 9, 0.8), use(op, 4, 0.2, role="move")),
    )
    first, *_ = causes(slower(1.25, path=after), record(path=before))
    assert first.kind == kind


def test_casts_about_the_same_types_are_no_other_precision() -> None:
    """They were part of a fusion that did not fire."""
    before = path(use("Conv", 9, 1.0, precision="fp32"))
    casts = use("Cast", 4, 0.2, role="move")
    after = path(use("Conv", 9, 0.8, precision="fp32"), casts)
    first, *_ = causes(slower(1.25, path=after), record(path=before))
    assert first.kind == "layout"


def test_parts_in_another_type_are_the_reason_of_a_lost_fusion() -> None:
    """Products in fp64 are not fused with additions in fp32, and take twice the time."""
    before = path(use("Gemm", 4, 1.0, precision="fp32", absorbs=("MatMul", "Add")))
    parts = use("MatMul", 4, 0.8, precision="fp64"), use("Add", 4, 0.2, precision="fp32")
    first, *_ = causes(slower(2.0, path=path(*parts)), record(path=before))
    assert (first.kind, first.summary) == ("precision", "fp32 → fp64: MatMul ×4")
    assert first.evidence[0].startswith("Gemm ×4 no longer fused: now MatMul ×4")
    same = path(*(use(u.kernel.op, 4, u.share, precision="fp32") for u in parts))
    first, *_ = causes(slower(2.0, path=same), record(path=before))
    assert first.kind == "fusion"


def test_a_recurrent_node_that_was_written_out_is_one_cause_with_the_time_between() -> None:
    before = path(use("LSTM", 2, 0.95), use("Gemm", 1, 0.05))
    after = path(use("Gemm", 200, 0.3), use("Sigmoid", 300, 0.3))
    (cause,) = causes(slower(2.0, path=after), record(path=before))
    assert cause.summary == "LSTM ×2 no longer fused: now Sigmoid ×300, Gemm ×199"
    assert cause.evidence == ("3 → 500 launches, and the time between them",)


def test_the_time_between_the_parts_of_a_lost_fusion_is_that_of_the_fusion() -> None:
    """One mechanism is one cause: without it nobody would launch the parts one by one."""
    source = {"MatMul": 8, "Gelu": 4}
    before = path(use("MatMul", 8, 0.78), use("Gelu", 4, 0.2), source=source)
    after = path(
        use("MatMul", 8, 0.78 / 1.3),
        *(use("Mul", 12, 0.1), use("Erf", 4, 0.08), use("Add", 4, 0.04)),
        source=source,
    )
    fusion, *others = causes(slower(1.3, path=after), record(path=before))
    assert fusion.kind == "fusion"
    assert fusion.summary == "Gelu ×4 no longer fused: now Mul ×12, Erf ×4, Add ×4"
    assert fusion.share == pytest.approx(1.0, abs=0.01)
    assert "12 → 28 launches, and the time between them" in fusion.evidence
    assert "launches" not in kinds(others)


def test_the_time_between_many_more_launches_is_theirs() -> None:
    """Small work that nothing did before."""
    before = path(use("Gemm", 3, 1.0))
    after = path(use("Gemm", 3, 0.5), use("Where", 497, 0.1))
    found = causes(slower(2.0, path=after), record(path=before))
    (launches,) = (
        cause for cause in found if cause.kind == "launches" and "between" in cause.summary
    )
    assert launches.summary == "3 → 500 launches, and the time between them"
    assert launches.share == pytest.approx(0.8, rel=0.05)
    assert not any(cause.kind == "unexplained" for cause in found)


def test_one_kernel_is_not_every_kernel() -> None:
    before, after = path(use("Gemm", 2, 0.9)), path(use("Gemm", 2, 0.95))
    (cause,) = causes(slower(2.0, path=after), record(path=before))
    assert cause.evidence == ("the one kernel that runs either way: Gemm ×2 took 2.1 × as long",)


def test_integer_weights_are_no_subnormal_values() -> None:
    other = replace(MODEL, weights="w2", tensors={"w": "d2"})
    both = path(use("MatMulInteger", 4, 0.9, precision="int8"))
    found = causes(slower(2.0, path=both, model=other, effective="int8"), record(path=both))
    assert not any(cause.kind == "data" for cause in found)


def test_kernels_that_a_changed_graph_brings_are_its_evidence_in_a_parity_failure() -> None:
    """They say nothing more of the outputs than the graph does."""
    before = path(use("MatMul", 4), source={"MatMul": 4})
    after = path(use("MatMul", 4), use("Exp", 1), source={"MatMul": 4, "Exp": 1})
    check = record(path=after, model=replace(MODEL, graph="g2"))
    (cause,) = causes(check, record(path=before), parity=Said(failures=("output 'y' differs",)))
    assert (cause.kind, cause.summary) == ("graph", "the graph changed: Exp ×0 → ×1")
    assert any("Exp" in line for line in cause.evidence)


def test_an_option_alone_is_a_suspect_without_a_share() -> None:
    (cause,) = causes(slower(1.4, options={**RECORD.options, "session.odd": "1"}))
    assert (cause.kind, cause.share) == ("options", None)


def test_a_loss_of_wall_time_without_any_reason_is_the_hosts() -> None:
    (cause,) = causes(slower(1.0, wall=1.5))
    assert cause.kind == "host"
    assert cause.share == pytest.approx(1.0, abs=0.01)
    assert any("CPU time" in line for line in cause.evidence)


def test_on_an_accelerator_the_kernels_own_times_tell_what_the_host_kept_waiting() -> None:
    """Its busy time is not measured with the wall time: a separate pass has it."""
    batch_s = RECORD.figures.wall.seconds
    before, after = (replace(RECORD.path, busy_s=batch_s * part) for part in (0.9, 1.0))
    now = figures(None, steady(1.5 * batch_s / 0.001))
    then = record(path=before, figures=figures(None, steady(batch_s / 0.001)), platform="cuda")
    check = record(path=after, figures=now, platform="cuda")
    (cause, *_) = causes(check, then)
    assert cause.kind == "host"
    assert cause.share == pytest.approx(0.8, abs=0.01)
    assert cause.summary.startswith("the device waits: ")
    assert cause.evidence[0] == "kernels' own times: 0.009 → 0.01 s a batch"
    (cause,) = causes(replace(check, path=replace(after, busy_s=batch_s * 1.45)), then)
    assert cause.kind == "unexplained"


def test_the_toolchain_is_a_cause_only_when_nothing_else_explains() -> None:
    (cause,) = causes(slower(1.4, toolchain={"onnxruntime": "1.32.0"}))
    assert cause.kind == "toolchain"
    assert cause.summary.endswith("onnxruntime 1.31.1 → 1.32.0")


def test_what_nothing_explains_is_said_to_be_unexplained() -> None:
    (cause,) = causes(slower(1.4))
    assert (cause.kind, cause.share) == ("unexplained", 1.0)
    assert cause.summary == "nothing that is recorded changed"


def test_the_rest_of_a_loss_is_unexplained_with_the_symptom_as_evidence() -> None:
    """Everything became half as slow again, and a transpose took a third of the loss."""
    before = path(use("MatMul", 12, 0.6), use("Conv", 2, 0.4))
    after = path(
        use("MatMul", 12, 0.48), use("Conv", 2, 0.32), use("Transpose", 4, 0.2, role="layout")
    )
    layout, rest = causes(slower(1.6, path=after), record(path=before))
    assert layout.kind == "layout"
    assert layout.share == pytest.approx(0.32 / 0.6)
    assert rest.kind == "unexplained"
    assert rest.share == pytest.approx(1 - 0.32 / 0.6)
    assert "every kernel is slower" in rest.evidence[0]


def test_shares_stay_sane_when_other_kernels_became_faster() -> None:
    before = path(use("A", 1, 0.5), use("MatMul", 1, 0.5))
    after = path(
        use("MatMul", 1, 0.1),
        use("A", 1, 0.5),
        use("Transpose", 3, 0.25, role="layout"),
        use("Reorder", 3, 0.15, role="move"),
    )
    found = causes(slower(1.1, path=after), record(path=before))
    assert sum(c.share or 0.0 for c in found) == pytest.approx(1.0)


def test_across_runtimes_causes_come_from_profiles_and_never_name_options() -> None:
    torch = record(
        key=replace(KEY, runtime="torch"),
        options={"matmul": "highest"},
        path=path(use("addmm", 20, 1.0, provider="aten:cpu", precision="fp32"), runtime="torch"),
    )
    check = slower(1.5, path=path(use("MatMul", 20, 1.0, precision="bf16")))
    (cause,) = causes(check, torch)
    assert cause.kind == "precision"
    assert cause.summary == "precision of the compute launches: fp32 100% → bf16 100%"


def test_a_path_without_evidence_claims_nothing() -> None:
    silent = KernelPath(runtime="onnxruntime.cpu", evidence="none")
    assert kinds(causes(slower(1.4, path=silent), record(path=FUSED))) == ["unexplained"]


# --- the other verdicts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "EP Error: no CUDA",
        "[W:onnxruntime:] Some nodes were not assigned to the preferred execution providers",
        "CUDAExecutionProvider left 3 × Gather on CPUExecutionProvider",
    ],
)
def test_placement_is_a_fallback_or_a_precision_with_the_runtimes_own_words(line: str) -> None:
    asked = Observed(asked_provider="CUDAExecutionProvider", providers={EP: 48})
    (cause,) = causes(RECORD, measurement=measurement(observed=asked), log=f"{line}\nother")
    assert (cause.kind, cause.evidence) == ("fallback", (line,))
    key = replace(KEY, precision="fp16")
    (cause,) = causes(record(key=key), record(key=key))
    assert cause.kind == "precision"


def test_an_interface_change_is_its_own_cause() -> None:
    outputs = (TensorSpec(name="y", dtype="float16", shape=(8, 2)),)
    assert kinds(causes(record(parity=replace(PARITY, outputs=outputs)))) == ["interface"]


def test_a_parity_failure_names_the_weights_that_changed() -> None:
    model = replace(MODEL, weights="w2", tensors={**MODEL.tensors, "fc2.weight": "z"})
    (cause,) = causes(record(model=model), parity=Said(failures=("output 'y' differs",)))
    assert (cause.kind, cause.summary) == ("weights", "weights changed: fc2.weight")


def test_a_parity_failure_in_another_precision_names_it_first_and_the_values_after() -> None:
    said = Said(failures=("output 'y': 1 non-finite element, the record has none",))
    found = causes(record(effective="fp16"), parity=said)
    assert kinds(found) == ["precision", "data"]
    assert found[1].evidence == said.failures


def test_a_parity_failure_that_does_not_repeat_is_nondeterminism() -> None:
    said = Said(failures=("repeats differ by 0.3",))
    found = causes(record(parity=replace(PARITY, repeatable=False)), parity=said)
    assert kinds(found) == ["nondeterminism"]


def test_other_constants_in_a_quantised_graph_are_quantization() -> None:
    def quantised(graph: str) -> Record:
        some = path(use("QLinearMatMul", 4), source={"QLinearMatMul": 4})
        return record(model=replace(MODEL, graph=graph), path=some)

    found = causes(quantised("g2"), quantised("g1"), parity=Said(failures=("differs",)))
    assert found[0].kind == "quantization"


def test_other_constants_that_are_slower_are_quantization() -> None:
    some = path(use("QLinearMatMul", 4, 1.0), source={"QLinearMatMul": 4})
    check = slower(2.0, path=some, model=replace(MODEL, graph="g2"))
    (cause,) = causes(check, record(path=some))
    assert cause.kind == "quantization"
    assert cause.evidence == (
        "the one kernel that runs either way: QLinearMatMul ×4 took 2 × as long",
    )


def test_casts_that_the_model_itself_has_are_precision() -> None:
    before = path(use("Gemm", 4), source={"MatMul": 4, "Add": 4})
    after = path(use("MatMul", 4), source={"MatMul": 4, "Add": 4, "Cast": 8})
    check = record(path=after, model=replace(MODEL, graph="g2"))
    (cause,) = causes(check, record(path=before), parity=Said(failures=("output 'y' differs",)))
    assert (cause.kind, cause.summary) == ("precision", "the graph changed: Cast ×0 → ×8")


def test_casts_that_the_model_itself_has_are_precision_although_products_are_not_in_it() -> None:
    moves = [use("Cast", 1, 0.2, role="move"), use("ReorderInput", 3, 0.2, role="move")]
    before = path(use("Conv", 9, 1.0, precision="fp32"), source={"Conv": 9})
    for cast, kind in (({}, "layout"), ({"Cast": 2}, "precision")):
        after = path(use("Conv", 9, 0.6, precision="fp32"), *moves, source={"Conv": 9, **cast})
        (cause,) = causes(slower(1 / 0.6, path=after), record(path=before))
        assert cause.kind == kind


def test_an_error_of_ten_bits_with_unchanged_types_is_a_reduced_product() -> None:
    check = record(parity=replace(PARITY, error_rel=8e-4))
    (cause,) = causes(check, parity=Said(failures=("output 'y' differs by 8e-4",)))
    assert cause.kind == "precision"
    assert "TF32" in cause.summary


def test_a_stale_record_names_the_weights_and_a_loss_its_mechanism() -> None:
    model = replace(MODEL, weights="w2", tensors={**MODEL.tensors, "fc2.weight": "z"})
    said = Said(stale=True, changed_tensors=("fc2.weight",))
    assert kinds(causes(record(model=model), parity=said)) == ["weights"]
    found = causes(slower(1.25, path=UNFUSED, model=model), record(path=FUSED), parity=said)
    assert set(kinds(found)) == {"fusion", "weights"}


def test_memory_names_the_option_or_the_copies() -> None:
    grown = replace(FIGURES, memory_process_bytes=400 * 2**20)
    options = {**RECORD.options, "enable_cpu_mem_arena": "0"}
    (cause,) = causes(record(figures=grown, options=options))
    assert (cause.kind, cause.summary) == ("options", "enable_cpu_mem_arena: unset → 0")
    assert "process memory grew 100.0%" in cause.evidence[0]
    tensors = {f"w{n}": "same" for n in range(12)}
    (cause,) = causes(record(figures=grown, model=replace(MODEL, tensors=tensors)))
    assert cause.kind == "memory"
    assert cause.evidence == ("byte-identical copies of weights: 0 → 11",)


def test_a_batch_that_does_not_fit_is_a_matter_of_memory() -> None:
    found = causes(record(figures=replace(FIGURES, batch_effective=4)), log="out of memory: 3 GiB")
    assert (found[0].kind, found[0].evidence) == ("memory", ("out of memory: 3 GiB",))


@pytest.mark.parametrize(
    ("witness", "text"),
    [
        ({"contended": 0.3}, "neighbours took 30% of the processor"),
        ({"fading": 0.4}, "the speed drifted by +40% in a repeat"),
        ({}, "repeats differ too much"),
    ],
)
def test_an_inconclusive_comparison_blames_the_machine(
    witness: dict[str, float], text: str
) -> None:
    noisy = record(figures=figures(steady(10.4, 2, 0.05), steady(10.4, 2, 0.05)))
    found = causes(noisy, measurement=measurement(**witness))  # type: ignore[arg-type]  # floats
    assert kinds(found) == ["machine"]
    assert text in found[0].summary


# --- in words -------------------------------------------------------------------------------------


def test_a_cause_tells_its_time_per_batch_and_that_of_the_whole_loss() -> None:
    comparison = decide(slower(1.25), RECORD, measurement=measurement())
    half = Cause(kind="fusion", summary="lost", share=0.5)
    assert lost_time(comparison, half) == " (+1.25 ms of +2.5 ms)"
    assert lost_time(comparison, replace(half, share=None)) == ""
    assert lost_time(error("died of signal 11"), half) == ""


def test_a_throttled_device_is_the_cause_and_not_its_noise() -> None:
    hot = replace(FIGURES, throttled=("sw thermal slowdown",))
    slow = record(figures=replace(slower(1.5).figures, throttled=hot.throttled))
    some = decide(slow, RECORD, measurement=measurement())
    (cause,) = attribute(some)[:1]
    assert (cause.kind, cause.summary) == ("machine", "throttled: sw thermal slowdown")
