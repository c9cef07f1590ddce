"""Values that a CPU is slow with are told from kernels that became slower, and named."""

from __future__ import annotations

import re

import pytest
from example_runs import need
from judged import Judged
from owed import OWED, slow_subnormals

need("onnx", "onnxruntime")
pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", OWED["subnormal"])
def test_values_that_are_slow_are_named(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["subnormal"][name])


def test_channels_that_decayed_are_named_and_no_more(judged: Judged) -> None:
    named = set(re.findall(r"fc\d\.weight", judged.item("decayed_channels")["reason"]))
    assert named == {f"fc{i}.weight" for i in range(3)}, judged.said("decayed_channels")


def test_channels_that_decayed_are_also_said_to_be_slow(judged: Judged) -> None:
    if not slow_subnormals():
        pytest.skip("subnormal values cost nothing on this CPU")
    assert "lost" in judged.item("decayed_channels")["reason"], judged.said("decayed_channels")
    assert judged.cause("decayed_channels")["kind"] == "data", judged.said("decayed_channels")
