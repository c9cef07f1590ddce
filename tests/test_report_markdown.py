"""Reports of one run, or of several runners together, as Markdown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from project import Project

from pytest_portability import cli
from pytest_portability.errors import UsageError
from pytest_portability.report import document, markdown

TESTS = """
@pytest.mark.parametrize("verdict", ["ok", "regressed", "skipped", "missing", "inconclusive"])
def test_it(portability, verdict):
    portability.check("m.onnx", inputs, name=verdict, profile={"seq": 128})

@pytest.mark.portability(targets=["amd-*"])
def test_elsewhere(portability):
    portability.check("m.onnx", inputs, name="ok")
"""


def item(**changes: Any) -> dict[str, Any]:
    """An item as the JSON report has it."""
    return {
        "nodeid": "t.py::test_m",
        "model": "m",
        "target": "cpu-x-2c",
        "runtime": "torch",
        "precision": "native",
        "batch": 8,
        "profile": {},
        "verdict": "ok",
        "outcome": "pass",
        "reason": "",
        "update": "",
        "throughput": 800.0,
        "unit": "samples",
        "loss": None,
        "memory_rel": None,
        "parity": None,
        "causes": [],
        "warnings": [],
        **changes,
    }


def tables(*items: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A report as JSON has it."""
    targets = [{"id": "cpu-x-2c"}]
    return {"schema": 1, "targets": targets, "problems": [], "items": [*items], **changes}


def test_a_run_writes_it_whole(project: Project) -> None:
    """What failed first, with its causes; then every item; what skipped is folded away."""
    project.make(TESTS)
    project.run("--portability", "--portability-report=markdown:out/report.md")
    text = (project.path / "out" / "report.md").read_text(encoding="utf-8")
    target = project.target.replace("_", r"\_")
    assert (
        text
        == f"""\
### Portability

4 measured: 2 skipped, 1 ok, 1 regressed, 1 missing, 1 inconclusive

**REGRESSED: regressed fake-native batch 1 seq=128 on {target}**

* regressed on purpose
* 80% of the loss: **fusion**: Gelu ×6 no longer fused

**MISSING: missing fake-native batch 1 seq=128 on {target}**

* missing on purpose

**INCONCLUSIVE: inconclusive fake-native batch 1 seq=128 on {target}**

* inconclusive on purpose

| model | target | build | batch | per second | vs baseline | memory | parity | verdict |
|---|---|---|---|---|---|---|---|---|
| ok | {target} | fake-native | 1 seq=128 | 800 | -1.0% (-1.8% to -0.2%) | +0% | 1.0e-07 | ok |
| regressed | {target} | fake-native | 1 seq=128 | 615.4 | -31.2% (-32.0% to -30.4%) | +0% | \
1.0e-07 | REGRESSED |
| missing | {target} | fake-native | 1 seq=128 | 800 | - | - | 1.0e-07 | MISSING |
| inconclusive | {target} | fake-native | 1 seq=128 | 800 | -4.0% (-4.8% to -3.2%) | +0% | \
1.0e-07 | inconclusive |

<details><summary>2 skipped</summary>

* test\\_it.py::test\\_it\\[{target}-fake-native-b1-skipped\\]: skipped on purpose
* test\\_it.py::test\\_elsewhere\\[amd-\\*-not-here\\]: no target here matches 'amd-\\*'; here: \
{target} (cpu, x86\\_64)

</details>
"""
    )


def test_reports_of_several_runners_become_one(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.make(TESTS)
    project.report()
    here, there = tmp_path / "a.json", tmp_path / "b.json"
    seen = project.json()
    here.write_text(json.dumps(seen), encoding="utf-8")
    for one in seen["items"]:
        one["target"] = "amd-mi300x"
    there.write_text(json.dumps(seen), encoding="utf-8")
    assert cli.main(["report", str(here), str(there)]) == 1
    out = capsys.readouterr().out
    assert "8 measured: 4 skipped, 2 ok, 2 regressed, 2 missing, 2 inconclusive" in out
    assert "REGRESSED: regressed fake-native batch 1 seq=128 on amd-mi300x" in out
    assert "too many" not in out


def test_what_two_runners_both_measured_is_a_problem() -> None:
    one, two = document.of(tables(item()), "a"), document.of(tables(item()), "b")
    joined = document.join([one, two])
    assert joined.problems == (
        "m cpu-x-2c torch-native 8 is in a and in b: one of them is too many",
    )
    assert joined.failed
    assert not document.join([one]).failed
    assert "is in a and in a" in document.join([one, one]).problems[0]
    other = document.of(tables(item(target="amd-mi300x")), "b")
    assert not document.join([one, other]).failed


def test_a_report_in_which_nothing_was_measured_is_not_green() -> None:
    skipped = item(verdict="skipped", outcome="skip", throughput=None, reason="not here")
    assert document.of(tables(skipped), "a").failed
    assert document.of(tables(), "a").failed
    assert document.of(tables(item(), problems=["the report was not written"]), "a").failed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "the report is no table"),
        ("{}", "key schema of the report is missing"),
        ('{"schema": 2}', "key schema is 2, this release reads 1"),
        ('{"schema": true}', "key schema of the report is True"),
        ('{"schema": 1, "targets": {}}', "key targets of the report is {}"),
        (json.dumps(tables({})), "key outcome of items is missing"),
        (json.dumps(tables(item(outcome="green"))), "key items.outcome is 'green'"),
        (json.dumps(tables(item(throughput="fast"))), "key throughput of items is 'fast'"),
        (json.dumps(tables(item(causes=[3]))), "items.causes is no table"),
    ],
)
def test_what_is_no_report_is_named_by_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    assert cli.main(["report", str(path)]) == 2
    said = capsys.readouterr()
    assert f"pytest-portability: {path}: " in said.err
    assert words in said.err
    assert said.out == ""


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nowhere.json"]) == 2
    assert "nowhere.json: cannot be read (No such file or directory)" in capsys.readouterr().err


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)


@given(anything, st.sampled_from(sorted(item())), st.sampled_from(["items", "targets", "problems"]))
def test_whatever_stands_in_a_report_it_is_read_or_refused(value: Any, key: str, part: str) -> None:
    for made in (value, tables(item(**{key: value})), {**tables(item()), part: value}):
        with contextlib.suppress(UsageError):
            markdown.render(document.join([document.of(made, "r.json")]))


def test_hostile_text_is_no_markup() -> None:
    evil = "a|b\n# <script>alert(1)</script> [x](http://y) @all #1 `c` \x1b[31m"
    made = document.of(tables(item(model=evil, reason=evil, outcome="fail", verdict="error")), "")
    text = markdown.render(made)
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "@all" not in text
    (row,) = (line for line in text.splitlines() if line.startswith("| a"))
    assert row.replace("\\|", "").count("|") == len(markdown.HEAD) + 2
    assert not any(line.startswith("# ") for line in text.splitlines())


def test_what_became_of_the_test_is_told(project: Project) -> None:
    """Not what the verdict alone would have done to it."""
    project.make(
        """
        @pytest.mark.xfail(reason="known")
        def test_expected(portability):
            portability.check("m.onnx", inputs, name="regressed")

        def test_own(portability):
            portability.check("m.onnx", inputs, name="ok")
            assert False, "my own"

        def test_second(portability):
            portability.check("m.onnx", inputs, name="ok_1")
            portability.check("m.onnx", inputs, name="regressed_1")
        """
    )
    _, items = project.report()
    assert {i["model"]: i["outcome"] for i in items} == {
        "regressed": "xfail",
        "ok": "fail",
        "ok_1": "pass",
        "regressed_1": "fail",
    }
