"""More memory for the same results is a verdict of its own, also where the speed is as it was."""

from __future__ import annotations

import re

import pytest
from example_runs import need
from judged import Judged
from owed import OWED, caps_memory

need("onnx", "onnxruntime", "torch")


@pytest.mark.parametrize("name", OWED["memory"])
def test_a_footprint_that_grew_is_named(judged: Judged, name: str) -> None:
    """The option that did it, or how many copies of a weight there are now."""
    judged.hold(name, OWED["memory"][name])


@pytest.mark.skipif(not caps_memory(), reason="caps the address space")
def test_a_batch_that_does_not_fit_says_the_largest_that_does(judged: Judged) -> None:
    item = judged.item("batch")
    assert 0 < item["batch_effective"] < 4096, judged.said("batch")
    assert re.search(rf"\b{item['batch_effective']}\b", item["reason"]), judged.said("batch")
