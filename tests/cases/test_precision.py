"""Coarser arithmetic is lost accuracy, also where no type changed and whoever chose it."""

from __future__ import annotations

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime", "openvino", "torch")


@pytest.mark.parametrize("name", OWED["precision"])
def test_coarser_arithmetic_is_named(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["precision"][name])
