"""What ran elsewhere, was not finished, faded or crept is never held to be fine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_runs import Run, need, run
from judged import HERE, INI, Judged, lay_out
from owed import OWED

from pytest_portability.compare import CONTENTION_LIMIT

need("onnx", "onnxruntime")
pytestmark = pytest.mark.alone

MISSING = """
import sys

sys.path[:0] = [{here!r}, {above!r}]

import pytest
from placement import CREEP

@pytest.mark.portability(runtimes=["onnxruntime.{provider}"], batches=[32])
def test_missing(portability):
    portability.check(CREEP["first"].model, CREEP["first"].inputs)
"""

CREEPING = """
import os
import sys

sys.path[:0] = [{here!r}, {above!r}]

import pytest
from placement import CREEP

@pytest.mark.portability(runtimes=["onnxruntime.cpu"], batches=[32], targets=["cpu"])
def test_creep(portability):
    build = CREEP[os.environ["STEP"]]
    portability.check(build.model, build.inputs, options=build.all_options)
"""


@pytest.mark.parametrize("name", OWED["placement"])
def test_what_ran_elsewhere_or_was_not_finished_is_named(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["placement"][name])


def test_a_fallback_that_cost_nothing_is_a_warning(judged: Judged) -> None:
    words = "\n".join([judged.said("partly"), *judged.item("partly")["warnings"]])
    assert "CPUExecutionProvider" in words, words


def test_a_speed_that_fades_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of which the last part is three times slower: a mean would be of neither."""
    monkeypatch.setenv("CASE_SET", "fading")
    lay_out(tmp_path, "placement", seconds=2)
    made = run(tmp_path, "--update-baselines", environment={"CASE_BUILD": "good"})
    before = made.record("fading", "fading").figures
    checked = run(tmp_path, "--update-baselines", environment={"CASE_BUILD": "bad"})
    (item,) = checked.items
    assert item["verdict"] == "inconclusive", checked.output
    assert re.search(r"fading|drift", item["reason"]), item["reason"]
    kept = made.item("fading", "fading")["throughput"]
    assert item["baseline_throughput"] == pytest.approx(kept, rel=1e-4)  # five digits are stored
    assert item["update"].startswith("refused: "), item["update"]
    assert checked.record("fading", "fading").figures == before


def creep(root: Path, step: str) -> Run:
    """Update the records with that many products; once more where neighbours disturbed it."""
    for _ in range(3):
        done = run(root, "--update-baselines", environment={"STEP": step})
        (item,) = done.items
        assert item["record"], done.output
        disturbed = (item["record"]["figures"]["contended"] or 0.0) > CONTENTION_LIMIT
        if item["verdict"] != "inconclusive" and not disturbed:
            break
    return done


def test_losses_inside_the_tolerance_do_not_add_up_unseen(tmp_path: Path) -> None:
    """Updating keeps the figures of what passed, so the next step is held against the first."""
    text = CREEPING.format(here=str(HERE), above=str(HERE.parent))
    (tmp_path / "test_creep.py").write_text(text)
    # One product more of 25 is well inside, so that it is told to be, and seven more are not.
    ini = INI.format(seconds=0.3, repeats=6) + "portability_tolerance = 0.1\n"
    (tmp_path / "pytest.ini").write_text(ini)
    first = creep(tmp_path, "first").record("creep", "onnxruntime.cpu")
    second = creep(tmp_path, "second")
    assert second.items[0]["verdict"] == "ok", second.output
    assert second.items[0]["update"] in {"refreshed", "unchanged"}, second.items[0]["update"]
    kept = second.record("creep", "onnxruntime.cpu")
    assert kept.path.source["MatMul"] == 26  # the facts are the new ones
    assert kept.figures == first.figures
    third = creep(tmp_path, "third")
    (item,) = third.items
    assert item["verdict"] == "regressed", third.output
    assert item["baseline_throughput"] == first.figures.throughput
    assert "MatMul" in "\n".join(
        word for cause in item["causes"] for word in (cause["summary"], *cause["evidence"])
    ), third.output


def test_a_provider_that_is_not_here_is_never_green(tmp_path: Path) -> None:
    """Nothing runs on the CPU in its place, and nothing is recorded."""
    import onnxruntime  # noqa: PLC0415 - heavy

    here = onnxruntime.get_available_providers()
    absent = "coreml" if "CUDAExecutionProvider" in here else "cuda"
    text = MISSING.format(here=str(HERE), above=str(HERE.parent), provider=absent)
    (tmp_path / "test_missing.py").write_text(text)
    (tmp_path / "pytest.ini").write_text(INI.format(seconds=0.3, repeats=6))
    done = run(tmp_path, "--update-baselines", "-rs")
    assert done.code == pytest.ExitCode.TESTS_FAILED, done.output
    assert f"onnxruntime.{absent}" in done.output
    assert "nothing was measured" in done.output
    assert not done.records
