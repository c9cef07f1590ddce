"""Nothing is flagged that computes the same, however its file looks."""

from __future__ import annotations

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime", "torch")
pytestmark = pytest.mark.alone  # a neighbour on the other core makes small models slower


@pytest.mark.parametrize("name", OWED["same_values"])
def test_the_same_values_from_another_file_are_not_flagged(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["same_values"][name])
