"""What makes the same weights slower is named: an option, a cap, transposes, more launches."""

from __future__ import annotations

import re

import pytest
from case import Judged, judge
from example_runs import need
from options import CAP

need("onnx", "onnxruntime", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("options"), "options")


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASE_SET", "capped")
        for name in CAP:
            patch.delenv(name, raising=False)
        return judge(tmp_path_factory.mktemp("capped"), "options", **CAP)


def named(judged: Judged, name: str, kind: str, words: str) -> None:
    """That a case regressed, and what its first cause is."""
    assert judged.verdict(name) == "regressed", judged.said(name)
    cause = judged.cause(name)
    assert cause["kind"] == kind, judged.said(name)
    assert re.search(words, "\n".join([cause["summary"], *cause["evidence"]])), judged.said(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("level", r"graph_optimization_level.*disable_all"),
        ("optimizers", r"disabled_optimizers.*GeluFusion"),
        ("sdpa", r"sdpa.*math"),
        ("backend", r"backend.*eager"),
    ],
)
def test_an_option_that_costs_time_is_the_first_cause(
    judged: Judged, name: str, words: str
) -> None:
    """Though fusions and kernels changed too: that is how it costs."""
    named(judged, name, "options", words)


def test_a_capped_instruction_set_is_the_first_cause(capped: Judged) -> None:
    """By the variable that caps it, or by what the library says it uses now."""
    named(capped, "capped", "options", r"ATEN_CPU_CAPABILITY|ONEDNN_MAX_CPU_ISA|(?i:capability)")


def test_a_lost_thread_never_passes_without_a_word(judged: Judged) -> None:
    """On an idle machine it is a regression; a busy one has no second core to lose.

    There the time that passed cannot be judged, and the work per batch did not grow. What must not
    happen is a pass that says neither that the threads changed nor that the wall was not judged.
    """
    said = judged.said("threads")
    if judged.verdict("threads") == "regressed":
        named(judged, "threads", "options", r"intra_op_num_threads.*2.*1")
    elif judged.verdict("threads") == "inconclusive":
        assert judged.item("threads")["reason"], said
    else:
        assert judged.verdict("threads") in {"ok", "improved"}, said
        assert re.search(r"wall (time )?not judged", said), said


def test_a_compiler_that_declined_is_not_what_was_asked_for(judged: Judged) -> None:
    """All of it ran eagerly, and the compiler's reason is the evidence: a break inside a loop."""
    assert judged.verdict("declined") == "placement", judged.said("declined")
    assert judged.cause("declined")["kind"] in {"launches", "fallback"}, judged.said("declined")
    assert re.search(r"(?i:graph break|for/while loop)", judged.said("declined"))


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("gelu", "fusion", r"Gelu"),
        ("transposes", "layout", r"Transpose"),
        ("copies", "layout", r"copy|clone|contiguous"),
    ],
)
def test_another_way_of_writing_is_named_for_what_it_does(
    judged: Judged, name: str, kind: str, words: str
) -> None:
    named(judged, name, kind, words)
