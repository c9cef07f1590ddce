"""A changed signature is said before anything is compared, with both sides of it."""

from __future__ import annotations

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime")


@pytest.mark.parametrize("name", OWED["signature"])
def test_a_changed_signature_is_named(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["signature"][name])
