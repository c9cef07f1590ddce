"""What makes the same weights slower is named: an option, a cap, transposes, more launches."""

from __future__ import annotations

import re

import pytest
from example_runs import need
from judged import Judged, judge
from options import CAP
from owed import OWED, Owed

need("onnx", "onnxruntime", "torch")
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CASE_SET", "capped")
        for name in CAP:
            patch.delenv(name, raising=False)
        return judge(tmp_path_factory.mktemp("capped"), "options", again=2, environment=CAP)


@pytest.mark.parametrize("name", OWED["options"])
def test_what_makes_the_same_weights_slower_is_named(judged: Judged, name: str) -> None:
    """An option, though fusions and kernels changed too: that is how it costs."""
    judged.hold(name, OWED["options"][name])


def test_a_capped_instruction_set_is_the_first_cause(capped: Judged) -> None:
    """By the variable that caps it, or by what the library says it uses now."""
    words = "ATEN_CPU_CAPABILITY|ONEDNN_MAX_CPU_ISA|(?i:capability)"
    owed = Owed("regressed", "options", words)
    capped.hold("capped", owed)


def test_a_lost_thread_never_passes_without_a_word(judged: Judged) -> None:
    """On an idle machine it is a regression; a busy one has no second core to lose.

    There the time that passed cannot be judged, and the work per batch did not grow. What must not
    happen is a pass that says neither that the threads changed nor that the wall was not judged.
    """
    said = judged.said("threads")
    if judged.verdict("threads") == "regressed":
        owed = Owed("regressed", "options", "intra_op_num_threads.*2.*1")
        judged.hold("threads", owed)
    elif judged.verdict("threads") == "inconclusive":
        assert judged.item("threads")["reason"], said
    else:
        assert judged.verdict("threads") in {"ok", "improved"}, said
        assert re.search(r"wall (time )?not judged", said), said
