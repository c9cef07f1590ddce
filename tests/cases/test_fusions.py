"""A fusion that no longer fires is named, with the time that it costs."""

from __future__ import annotations

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime", "torch")
pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", OWED["fusions"])
def test_a_fusion_that_no_longer_fires_is_the_first_cause(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["fusions"][name])
