"""What changes nothing is not flagged, whatever changed in the file or on the machine."""

from __future__ import annotations

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime", "openvino", "torch")
pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", OWED["harmless"])
def test_it_is_not_flagged(judged: Judged, name: str) -> None:
    """Noise may hide that nothing changed; only the machine may be blamed for it."""
    judged.hold(name, OWED["harmless"][name])


@pytest.mark.parametrize("name", OWED["harmless"])
def test_no_kernel_is_said_to_have_changed(judged: Judged, name: str) -> None:
    """They are matched by what they do: not by name, order or file."""
    item = judged.item(name)
    words = [judged.said(name), *item["warnings"]]
    assert not [w for w in words if "×" in w or "kernel" in w], words


@pytest.mark.parametrize("name", OWED["harmless"])
def test_the_same_kernels_ran_as_often(judged: Judged, name: str) -> None:
    """By what both runs saw, whatever the verdict: noise that hides a loss hides no kernel."""
    then, now = judged.kernels(name)
    assert then
    assert now == then


def test_a_slow_start_is_in_the_record_and_not_in_the_speed(judged: Judged) -> None:
    """The first call of a compiled build takes many times what a later one takes."""
    figures = judged.item("compiled")["record"]["figures"]
    assert figures["first_call_s"] + figures["build_s"] > 100 * figures["wall"]["seconds"]
