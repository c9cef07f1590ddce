"""More memory for the same results is a verdict of its own, also where the speed is as it was."""

from __future__ import annotations

import re
import sys

import pytest
from case import Judged, judge
from example_runs import need

need("onnx", "onnxruntime", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("memory"), "memory")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="caps the address space")
def test_a_batch_that_does_not_fit_says_the_largest_that_does(judged: Judged) -> None:
    item = judged.item("batch")
    assert item["verdict"] == "unfit", judged.said("batch")
    assert 0 < item["batch_effective"] < 4096, judged.said("batch")
    assert re.search(rf"\b{item['batch_effective']}\b", item["reason"]), judged.said("batch")
    assert judged.cause("batch")["kind"] == "memory", judged.said("batch")


@pytest.mark.parametrize(
    ("name", "kinds", "words"),
    [
        ("arena", {"options", "memory"}, r"enable_cpu_mem_arena.*(?i:true)"),
        ("tied", {"memory"}, r"copies.*\b11\b"),
        ("kept", {"memory"}, r"buffer|MiB"),
    ],
)
def test_a_footprint_that_grew_is_named(
    judged: Judged, name: str, kinds: set[str], words: str
) -> None:
    """The option that did it, or how many copies of a weight there are now."""
    assert judged.verdict(name) == "memory", judged.said(name)
    cause = judged.cause(name)
    assert cause["kind"] in kinds, judged.said(name)
    assert re.search(words, "\n".join([cause["summary"], *cause["evidence"]])), judged.said(name)
