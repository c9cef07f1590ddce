"""What differs between two kernel paths is said in one line per mechanism."""

from __future__ import annotations

import pytest
from synthetic import path, use

from pytest_portability.kernel_changes import diff
from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.path_profiles import diff_profiles, profile
from pytest_portability.runtimes import PRECISIONS

BERT_SOURCE = {"MatMul": 12, "Add": 8, "Gelu": 2, "LayerNormalization": 4, "Softmax": 2}


def kinds(before: KernelPath, after: KernelPath) -> list[str]:
    return [change.kind for change in diff(before, after)]


def test_a_path_does_not_differ_from_itself() -> None:
    some = path(use("MatMul", 12, 0.8), use("BiasGelu", 2, 0.2), source=BERT_SOURCE)
    assert diff(some, some) == ()


def test_a_model_that_grew_lost_no_fusion() -> None:
    """A fourth layer of the same: what was folded before still is, and there is more of it."""
    source = {"MatMul": 24, "Add": 27, "Gelu": 3}
    before = path(use("FusedMatMul", 3), use("MatMul", 21), use("Add", 12), source=source)
    after = path(
        use("FusedMatMul", 4),
        use("MatMul", 28),
        use("Add", 16),
        source={"MatMul": 32, "Add": 36, "Gelu": 4},
    )
    assert kinds(before, after) == kinds(after, before) == ["launches"]
    apart = path(use("FusedMatMul", 3), use("MatMul", 21), use("Add", 27), source=source)
    assert kinds(before, apart) == ["fusion lost"]


def test_what_a_kernel_did_besides_is_named_where_the_kernel_still_runs() -> None:
    """Where no longer fused, now Where: that says nothing."""
    alone = path(use("Where", 1, absorbs=("Where",)), use("Mul", 1, absorbs=("Mul",)))
    folded = path(use("Where", 1, absorbs=("Mul", "Where")))
    assert [c.summary for c in diff(folded, alone)] == ["Mul ×1 no longer folded into Where ×1"]
    assert [c.summary for c in diff(alone, folded)] == ["Mul ×1 now folded into Where ×1"]
    apart = path(use("Conv", 2, absorbs=("Conv",)), use("Relu", 2, absorbs=("Relu",)))
    (change,) = diff(path(use("Conv", 2, absorbs=("Conv", "Relu"))), apart)
    assert change.summary == "Relu ×2 no longer folded into Conv ×2"


def test_the_same_kernels_of_a_rewritten_graph_are_no_difference() -> None:
    """Gemm of MatMul and Add, then of Gemm: what it is made of does not run by itself."""
    parts = use("Gemm", 4, absorbs=("MatMul", "Add"))
    whole = use("Gemm", 4, absorbs=("Gemm",))
    assert diff(path(parts), path(whole)) == diff(path(whole), path(parts)) == ()
    before = path(parts, use("FusedGemm", 4, absorbs=("Add", "MatMul", "Relu")))
    apart = (use(op, 4, absorbs=(op,)) for op in ("Abs", "Add", "Mul"))
    (change,) = diff(before, path(use("Gemm", 8, absorbs=("Gemm",)), *apart))
    assert change.kind == "fusion lost"
    assert change.summary == "FusedGemm ×4 no longer fused: now Abs ×4, Add ×4, Gemm ×4, Mul ×4"


def test_a_branch_that_was_not_taken_was_not_fused() -> None:
    source = {"If": 1, "MatMul": 3}
    cheap = path(use("If", 1, role="other"), use("MatMul", 1), source=source)
    dear = path(use("If", 1, role="other"), use("MatMul", 2), source=source)
    assert kinds(cheap, dear) == kinds(dear, cheap) == ["launches"]


def test_more_of_what_ran_beside_it_is_no_lost_fusion() -> None:
    """A loop of torch that runs forty steps, and ten before."""
    step = ("addmm", "tanh", "add")
    before = path(use("abs", 10), use("max", 10), *(use(op, 10) for op in step))
    after = path(*(use(op, 40) for op in step))
    assert "fusion lost" not in kinds(before, after)
    split = path(use("mm", 10), use("bias", 10))
    assert kinds(path(use("linear", 10)), split) == ["fusion lost"]


def test_an_order_of_kernels_is_no_difference() -> None:
    uses = use("MatMul", 12), use("Add", 3), use("Reshape", 3, role="layout")
    assert diff(path(*uses), path(*reversed(uses))) == ()


def test_an_empty_field_never_differs_from_a_value() -> None:
    """A runtime that began to name implementations has not changed its kernels."""
    silent = path(use("Conv", 9), use("MatMul", 2))
    outspoken = path(
        use("Conv", 9, precision="fp32", implementation="jit:avx512", absorbs=("Conv", "Relu")),
        use("MatMul", 2, precision="fp32"),
    )
    assert diff(silent, outspoken) == diff(outspoken, silent) == ()


def test_a_path_without_evidence_is_not_compared() -> None:
    assert diff(path(use("MatMul", 12)), path(evidence="none")) == ()


def test_a_precision_change_is_one_line_with_its_kernels_and_without_lost_fusions() -> None:
    def built(precision: str) -> KernelPath:
        return path(
            use(
                "FullyConnected", 9, 0.7, precision=precision, implementation=f"brgemm_{precision}"
            ),
            use("Subgraph", 2, 0.2, precision=precision, absorbs=("MatMul", "MatMul", "Softmax")),
            use("Reshape", 4, 0.1, precision=precision, role="layout"),
        )

    (change,) = diff(built("bf16"), built("fp32"))
    assert change.kind == "precision"
    assert change.summary == "bf16 → fp32: FullyConnected ×9, Subgraph ×2"
    assert change.launches_before == change.launches_after == 15
    assert change.share_before == pytest.approx(1.0)


def test_casts_gained_with_a_precision_are_one_line_of_their_own() -> None:
    eager = path(use("addmm", 13, precision="fp32"))
    autocast = path(use("addmm", 13, precision="bf16"), use("_to_copy", 35, role="move"))
    changes = diff(eager, autocast)
    assert [c.kind for c in changes] == ["precision", "move"]
    assert changes[1].summary == "copies and casts: _to_copy ×0 → ×35"


def test_another_implementation_of_the_same_work_is_one_line() -> None:
    def built(isa: str) -> KernelPath:
        return path(
            use("Conv", 9, 0.9, precision="fp32", implementation=f"brgconv_{isa}"),
            use("Pool", 1, 0.1, precision="fp32", implementation=f"jit_{isa}"),
        )

    (change,) = diff(built("avx512"), built("avx2"))
    assert change.kind == "implementation"
    assert "Conv ×9 brgconv_avx512 → brgconv_avx2" in change.summary


def test_nodes_that_moved_to_another_provider_are_one_line_beside_their_copies() -> None:
    before = path(use("MatMul", 12, provider="CUDA"), use("Gather", 4, provider="CUDA"))
    after = path(
        use("MatMul", 12, provider="CUDA"), use("Gather", 4), use("MemcpyToHost", 2, role="move")
    )
    provider, move = diff(before, after)
    assert provider.summary == "CUDA → CPUExecutionProvider: Gather ×4"
    assert move.summary == "copies and casts: MemcpyToHost ×0 → ×2"


def test_a_lost_fusion_is_derived_from_the_source_that_was_not_executed() -> None:
    before = path(
        use("MatMul", 12, 0.8), use("BiasGelu", 2, 0.1), use("Add", 6, 0.1), source=BERT_SOURCE
    )
    after = path(
        use("MatMul", 12, 0.6), use("Add", 8, 0.2), use("Gelu", 2, 0.2), source=BERT_SOURCE
    )
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert change.summary == "BiasGelu ×2 no longer fused: now Gelu ×2, Add ×2"
    assert (change.launches_before, change.launches_after) == (2, 4)
    assert change.share_before == pytest.approx(0.1)
    assert change.share_after == pytest.approx(0.2 + 0.2 * 2 / 8)
    (back,) = diff(after, before)
    assert back.kind == "fusion gained"
    assert back.summary == "Gelu ×2, Add ×2 now fused: BiasGelu ×2"


def test_what_the_graph_says_in_another_way_and_runs_by_itself_was_fused_before() -> None:
    """Seen with blocked convolutions, which do not tell what they absorb."""
    before = path(use("Conv", 5, 0.9), source={"Conv": 5, "Relu": 5, "Shape": 1})
    after = path(
        use("Conv", 5, 0.3),
        *(use("Where", 5, 0.4), use("Greater", 5, 0.2), use("Add", 1, 0.1)),
        source={"Conv": 5, "Where": 5, "Greater": 5, "Add": 1},
    )
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert change.summary == (
        "Relu ×5 no longer fused or folded into other kernels: now Where ×5, Greater ×5, Add ×1"
    )
    assert change.share_after == pytest.approx(0.7)


def test_a_normalization_that_is_written_out_was_folded_with_its_activation() -> None:
    before = path(use("Conv", 5), source={"Conv": 5, "BatchNormalization": 5, "Relu": 5})
    parts = [use(op, 5) for op in ("Sub", "Div", "Relu")]
    after = path(use("Conv", 5), *parts, source={"Conv": 5, "Sub": 5, "Div": 5, "Relu": 5})
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert change.summary.startswith("BatchNormalization ×5 no longer fused or folded")


def test_a_constant_that_is_no_longer_computed_was_no_fusion() -> None:
    before = path(use("Conv", 5), source={"Conv": 5, "Shape": 1, "Gather": 1})
    after = path(use("Conv", 5), use("Where", 1), source={"Conv": 5, "Where": 1})
    assert kinds(before, after) == ["kernel"]


def test_known_absorbed_operations_give_one_line_for_each_fused_kernel() -> None:
    before = path(
        use("BiasGelu", 2, absorbs=("Add", "Gelu")),
        use("SkipLayerNormalization", 4, absorbs=("Add", "LayerNormalization")),
    )
    after = path(use("Add", 6), use("Gelu", 2), use("LayerNormalization", 4))
    assert [c.summary for c in diff(before, after)] == [
        "BiasGelu ×2 no longer fused: now Add ×2, Gelu ×2",
        "SkipLayerNormalization ×4 no longer fused: now Add ×4, LayerNormalization ×4",
    ]


def test_a_convolution_that_no_longer_absorbs_its_activation_is_a_lost_fusion() -> None:
    before = path(use("Conv", 9, absorbs=("Conv", "Relu")))
    after = path(use("Conv", 9, absorbs=("Conv",)), use("Relu", 9))
    (change,) = diff(before, after)
    assert change.summary == "Relu ×9 no longer folded into Conv ×9"


def test_operations_absorbed_by_a_kernel_of_unchanged_name_are_a_lost_fusion() -> None:
    """ONNX Runtime's blocked Conv is called Conv whether it absorbed its Relu or not."""
    source = {"Conv": 9, "BatchNormalization": 6, "Relu": 7}
    before = path(use("Conv", 9), source=source)
    after = path(use("Conv", 9), use("BatchNormalization", 6), use("Relu", 7), source=source)
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert (
        change.summary
        == "Relu ×7, BatchNormalization ×6 no longer fused or folded into other kernels"
    )


def test_parts_that_are_written_in_another_way_belong_to_the_fusion_that_was_lost() -> None:
    """One mechanism is one line, whatever the exporter made of the same layer."""
    norm = use("LayerNormalization", 6, absorbs=("Add", "Div", "Mul", "Pow", "ReduceMean", "Sub"))
    after = path(
        *(use(op, 6) for op in ("Add", "Div", "ReduceMean", "Sub")),
        use("Mul", 18),
        use("Sqrt", 6),
        source={"Add": 6, "Div": 6, "ReduceMean": 6, "Sub": 6, "Mul": 18, "Sqrt": 6},
    )
    before = path(norm, source={"Pow": 6, **dict.fromkeys(norm.kernel.absorbs, 6)})
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert change.summary.startswith("LayerNormalization ×6 no longer fused: now Mul ×18, ")
    assert change.launches_after == 48


def test_a_kernel_that_absorbs_other_parts_is_no_other_kernel() -> None:
    before = path(use("BiasGelu", 3, absorbs=("Add", "Gelu")))
    after = path(use("BiasGelu", 3, absorbs=("Add", "Div", "Erf", "Mul")))
    assert diff(before, after) == ()


def test_a_fused_kernel_that_became_several_without_any_source_is_a_lost_fusion() -> None:
    before = path(use("addmm", 13), use("_scaled_dot_product_flash_attention_for_cpu", 2))
    after = path(
        use("addmm", 13), use("bmm", 4), use("_safe_softmax", 2), use("clone", 8, role="move")
    )
    lost, move = diff(before, after)
    assert lost.kind == "fusion lost"
    assert lost.summary.startswith("_scaled_dot_product_flash_attention_for_cpu ×2 no longer fused")
    assert lost.summary.endswith("bmm ×4, _safe_softmax ×2")
    assert move.kind == "move"


def test_a_graph_decomposed_by_another_exporter_is_a_lost_fusion() -> None:
    parts = {"ReduceMean": 12, "Sub": 6, "Pow": 6, "Sqrt": 6, "Div": 6}
    before = path(use("LayerNormalization", 6), source={"LayerNormalization": 6})
    after = path(*(use(op, n) for op, n in parts.items()), source=parts)
    (change,) = diff(before, after)
    assert change.kind == "fusion lost"
    assert "LayerNormalization ×6 no longer fused" in change.summary


def test_one_kernel_replaced_by_one_other_is_no_fusion() -> None:
    assert kinds(path(use("BiasGelu", 2)), path(use("FastGelu", 2))) == ["kernel"]


def test_the_same_kernel_launched_more_often_is_a_count() -> None:
    (change,) = diff(path(use("MatMul", 25, 0.5)), path(use("MatMul", 33, 0.6)))
    assert change.kind == "launches"
    assert change.summary == "more launches: MatMul ×25 → ×33"
    assert change.launches_after == 8
    assert kinds(path(use("MatMul", 33)), path(use("MatMul", 25))) == ["launches"]


def test_layout_operations_are_folded_into_one_line() -> None:
    before = path(use("Conv", 9), use("Reshape", 2, role="layout"))
    after = path(
        use("Conv", 9), use("Reshape", 5, role="layout"), use("Transpose", 18, role="layout")
    )
    (change,) = diff(before, after)
    assert change.kind == "layout"
    assert change.summary == "layout operations: Reshape ×2 → ×5, Transpose ×0 → ×18"


def test_a_share_that_one_kernel_lacks_is_unknown_and_not_zero() -> None:
    (change,) = diff(path(use("A", 1, 0.4), use("B", 1)), path(use("C", 1, 0.3), use("D", 1, 0.1)))
    assert change.share_before is None
    assert change.share_after == pytest.approx(0.4)


def test_the_effective_precision_is_that_of_most_compute_work() -> None:
    assert effective_precision(path(use("MatMul", 4, precision="fp32"))) == "fp32"
    mixed = path(use("MatMul", 9, 0.2, precision="fp32"), use("Conv", 1, 0.8, precision="bf16"))
    assert effective_precision(mixed) == "bf16"


def test_autocast_is_effective_although_most_launches_are_small_fp32_operations() -> None:
    some = path(use("addmm", 13, precision="bf16"), use("layer_norm", 40, precision="fp32"))
    assert effective_precision(some) == "bf16"


def test_integer_index_arithmetic_has_no_say_and_integer_products_are_int8() -> None:
    some = path(use("Add", 90, precision="int64"), use("Relu", 2, precision="fp16"))
    assert effective_precision(some) == "fp16"
    assert effective_precision(path(use("MatMulInteger", 2, precision="int32"))) == "int8"
    assert effective_precision(path(use("Conv", 2, precision="uint8"))) == "int8"


@pytest.mark.parametrize(
    "some",
    [
        path(),
        path(use("MatMul", 12)),
        path(use("MatMul", 3), use("Conv", 2, precision="fp32")),
        path(use("MatMul", 3, precision="fp64")),
    ],
)
def test_an_effective_precision_that_cannot_be_told_is_empty(some: KernelPath) -> None:
    assert effective_precision(some) == ""


def test_an_effective_precision_is_one_that_can_be_asked_for() -> None:
    for name in ("fp32", "tf32", "bf16", "fp16", "int8", "fp8", ""):
        assert effective_precision(path(use("MatMul", 1, precision=name))) in {*PRECISIONS, ""}


def test_across_runtimes_only_profiles_are_compared() -> None:
    torch = path(
        use("addmm", 20, 0.9, provider="aten:cpu", precision="fp32"),
        use("copy_", 2, 0.1, provider="aten:cpu", role="move"),
        runtime="torch",
    )
    ort = path(use("MatMul", 21, 1.0, precision="bf16"), runtime="onnxruntime.cpu")
    changes = diff_profiles(profile(torch), profile(ort))
    assert [c.summary for c in changes] == [
        "precision of the compute launches: fp32 100% → bf16 100%",
        "move kernels ×2 → ×0 per inference",
    ]
    assert profile(torch).time == {"compute": pytest.approx(0.9), "move": pytest.approx(0.1)}
    assert profile(ort).provider == {"CPUExecutionProvider": 1.0}


def test_similar_profiles_and_empty_ones_do_not_differ() -> None:
    one, other = path(use("MatMul", 20, precision="fp32")), path(use("mm", 22, precision="fp32"))
    assert diff_profiles(profile(one), profile(other)) == ()
    assert diff_profiles(profile(path()), profile(path())) == ()
