"""A report as one HTML file: whole, harmless, and refused early where it cannot be drawn."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project import Project, flat
from test_report_markdown import anything, item, tables
from varied import varied

from pytest_portability import cli, report
from pytest_portability.errors import UsageError
from pytest_portability.report import document
from pytest_portability.report import json as as_json

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from pytest_portability.report import html, plots

GOLDEN = Path(__file__).parent / "goldens" / "report.html"

EVIL = [
    "<script>alert(1)</script>",
    '"onmouseover="alert(1)',
    "'onfocus='alert(1)' autofocus='",
    "</style><script>alert(1)</script>",
    "</title></script><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]><!--",
    "\x00\x1b[31m\u202e\ud800",
]

TESTS = """
@pytest.mark.parametrize("verdict", ["ok", "regressed", "skipped", "missing", "inconclusive"])
def test_it(portability, verdict):
    portability.check("m.onnx", inputs, name=verdict, profile={"seq": 128})
"""


class Page(HTMLParser):
    """A page as its tags, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._within = ""
        self.inside: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._within = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        self.inside[self._within] = self.inside.get(self._within, "") + data

    def values(self, name: str) -> list[str]:
        """Of an attribute, wherever it is."""
        return [value for _, given, value in self.attributes if given == name]


def page(tables_: Any = None) -> Page:
    """The page of a report."""
    found = as_json.tables(varied()) if tables_ is None else tables_
    return Page(html.render(document.of(found, "")))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots without their drawing, which takes long and depends on the fonts that are there."""
    monkeypatch.setattr("vl_convert.vegalite_to_svg", lambda _spec: "<svg></svg>")


# --- the whole file ----------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_whole_page_is_as_it_was() -> None:
    """``REWRITE_GOLDENS=1 pytest tests/test_report_html.py`` renews the file."""
    text = html.render(document.of(as_json.tables(varied()), ""))
    for tag in ("style", "script"):
        text = re.sub(rf"(<{tag}>).*?(</{tag}>)", r"\1\2", text, flags=re.DOTALL)
    text = re.sub(r"sha256-[^']+", "sha256-", text)
    if os.environ.get("REWRITE_GOLDENS"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_it_loads_nothing_and_runs_its_own_script_only() -> None:
    made = page()
    (policy,) = [v for v in made.values("content") if v.startswith("default-src")]
    digest = base64.b64encode(hashlib.sha256(made.inside["script"].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    loading = {"src", "srcset", "action", "xlink:href", "data", "poster", "background"}
    assert not loading & {name for _, name, _ in made.attributes}
    assert all(link.startswith("#") for link in made.values("href"))
    assert "url(" not in made.inside["style"]
    assert "@import" not in made.inside["style"]


def test_every_link_leads_to_an_item_and_every_id_is_one() -> None:
    made = page()
    ids = made.values("id")
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert {link[1:] for link in made.values("href")} <= set(ids)
    described = " ".join(made.values("aria-labelledby")).split()
    assert set(described) <= set(ids)


def test_an_item_has_the_same_id_whatever_is_beside_it() -> None:
    one, other = item(model="a", batch=1), item(model="b")
    first = re.findall(r'id="(item-[^"]+)"', html.render(document.of(tables(one, other), "x")))
    again = re.findall(r'id="(item-[^"]+)"', html.render(document.of(tables(other, one), "y")))
    assert first == again[::-1]
    assert first[0].startswith("item-a-cpu-x-2c-torch-native-1-")
    twice = re.findall(r'id="(item-[^"]+)"', html.render(document.of(tables(one, one), "x")))
    assert twice == [first[0], f"{first[0]}-2"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"items": [item()]}, "green"),
        ({"items": [item(), item(model="b", outcome="warn", verdict="inconclusive")]}, "warnings"),
        ({"items": [item(), item(model="b", outcome="fail", verdict="memory")]}, "not green"),
        ({"items": []}, "not green"),
        ({"items": [item(throughput=None, outcome="skip", verdict="skipped")]}, "not green"),
        ({"items": [item()], "problems": ["nothing is well"]}, "not green"),
    ],
)
def test_only_what_was_measured_and_is_well_is_green(changes: dict[str, Any], word: str) -> None:
    text = html.render(document.of(tables(**changes) | changes, ""))
    summary = re.search(r'<p class="summary (\w+)">(.*?)</p>', text)
    assert summary
    assert word in summary[2]
    assert (summary[1] == "pass") == (word == "green")


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({}, "pass"),
        ({"verdict": "improved"}, "pass"),
        ({"throughput": None}, "none"),
        ({"throughput": None, "verdict": "skipped", "outcome": "skip"}, "none"),
        ({"verdict": "regressed", "update": "written"}, "known"),
        ({"verdict": "regressed", "outcome": "xfail"}, "known"),
        ({"outcome": "fail"}, "fail"),
    ],
)
def test_an_item_is_green_only_if_it_was_measured_and_passed(
    changes: dict[str, Any], tone: str
) -> None:
    (made,) = html._items(document.of(tables(item(**changes)), ""))
    assert made.tone == tone


# --- where it comes from -----------------------------------------------------------------------


def test_a_run_writes_it(project: Project) -> None:
    """Everything that the terminal says of an item is there, and the command to record it."""
    project.make(TESTS)
    project.run("--portability", "--portability-report=html:out/report.html")
    text = (project.path / "out" / "report.html").read_text(encoding="utf-8")
    made = Page(text)
    assert made.tags["article"] == 5 + 1  # and the run
    said = " ".join(made.text.split())
    assert "4 measured: " in said
    assert "regressed on purpose" in said
    assert "80 % of the loss" in said
    assert "Gelu ×6 no longer fused" in said
    assert "tolerance −5.0 % (default)" in said
    assert 'pytest --portability --update-baselines --portability-accept="why" "test_it.py' in said
    assert "skipped on purpose" in said


def test_reports_of_several_runners_become_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the performance-portability metric over their targets."""
    found = as_json.tables(varied())
    found["problems"] = []
    for name, target in (("a", "nvidia-h200"), ("b", "amd-mi300x")):
        part = [dict(one) for one in found["items"] if one["target"] == target]
        (tmp_path / f"{name}.json").write_text(
            json.dumps({**found, "items": part}), encoding="utf-8"
        )
    out = tmp_path / "new" / "all.html"
    assert cli.main(["report", f"--html={out}", *(str(tmp_path / f"{n}.json") for n in "ab")]) == 1
    assert capsys.readouterr().out.startswith(f"written: {out} (")
    made = Page(out.read_text(encoding="utf-8"))
    assert made.tags["article"] == 6 + 2
    assert str(tmp_path / "b.json") in made.text
    assert "Performance portability" in made.text


def test_the_metric_is_over_the_targets_of_the_report() -> None:
    """By hand: on x the second runtime reaches half of the best, on y it is the only one."""
    whole = as_json.tables(varied())
    record = whole["items"][2]["record"]

    def on(target: str, runtime: str, throughput: float, **changes: Any) -> dict[str, Any]:
        key = {**record["key"], "model": "m", "target": target, "runtime": runtime}
        return item(
            target=target,
            runtime=runtime,
            throughput=throughput,
            record={**record, "key": key},
            **changes,
        )

    found = tables(on("x", "torch", 100.0), on("x", "openvino", 50.0), on("y", "openvino", 10.0))
    metrics = {m.key.runtime: m for m in html._portability(document.of(found, ""))}
    assert metrics["openvino"].strict == pytest.approx(2 / 3)
    assert (metrics["torch"].strict, metrics["torch"].here) == (0.0, 1.0)
    wrong = tables(on("x", "torch", 100.0), on("y", "torch", 10.0, verdict="parity"))
    assert list(html._portability(document.of(wrong, ""))) == []


# --- what is missing ---------------------------------------------------------------------------


@pytest.fixture
def without_vl_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for module in ("html", "plots"):
        monkeypatch.delitem(sys.modules, f"pytest_portability.report.{module}")
        monkeypatch.delattr(report, module)


MISSING = (
    "an HTML report is drawn by jinja2 and vl-convert-python, which cannot be imported (import of "
    "vl_convert halted; None in sys.modules): pip install 'pytest-portability[html]'"
)


@pytest.mark.usefixtures("without_vl_convert")
def test_without_the_extra_a_run_ends_before_it_measures(project: Project) -> None:
    project.make(TESTS)
    result = project.run("--portability", "--portability-report=html:report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert MISSING in flat(result)
    assert "collected" not in flat(result)
    assert project.run("--portability", "--portability-report=json:r.json").ret == 1


@pytest.mark.usefixtures("without_vl_convert")
def test_without_the_extra_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(tables(item())), encoding="utf-8")
    assert cli.main(["report", "--html=r.html", str(path)]) == 2
    assert capsys.readouterr().err == f"pytest-portability: {MISSING}\n"
    assert cli.main(["report", str(path)]) == 0


def test_a_page_that_cannot_be_drawn_loses_no_other_report(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_spec: object) -> str:
        msg = "no memory for V8"
        raise ValueError(msg)

    monkeypatch.setattr("vl_convert.vegalite_to_svg", broken)
    project.make("def test_it(portability): portability.check('m.onnx', None, name='ok')")
    result, items = project.report("--portability-report=html:r.html")
    assert "r.html was not written: ValueError: no memory for V8" in flat(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [one["verdict"] for one in items] == ["ok"]
    assert not (project.path / "r.html").exists()


def test_a_page_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(tables(item())), encoding="utf-8")
    assert cli.main(["report", f"--html={path}/r.html", str(path)]) == 2
    assert (
        f"{path}/r.html cannot be written, {path} is no directory: give another"
        in capsys.readouterr().err
    )


def test_a_report_of_no_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report"]) == 2
    assert "report of which FILE?" in capsys.readouterr().err


# --- hostile text ------------------------------------------------------------------------------


NAMED = {"session", "toolchain", "options", "providers", "metrics", "opset", "floors_rel", "facts"}
"""Tables whose keys are names that somebody else chose."""


def poisoned(value: Any, evil: str, key: str = "") -> Any:
    """Every text of a report, and every name in it, with something evil in it."""
    if isinstance(value, dict):
        prefix = evil if key in NAMED else ""
        return {f"{prefix}{k}": poisoned(v, evil, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(one, evil, key) for one in value]
    return f"{evil}{value}" if isinstance(value, str) and key != "outcome" else value


def hostile(evil: str) -> Any:
    """A report of such texts; another verdict than ours of two targets would be refused."""
    tables = poisoned(as_json.tables(varied()), evil)
    for delta in tables["across"]:
        for row in delta["rows"]:
            row["verdict"] = "regressed"
    return tables


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("evil", EVIL)
def test_hostile_text_is_only_text(evil: str) -> None:
    """Whatever a record, a test or a file says: the same tags, attributes and script as always."""
    clean, found = page(), page(hostile(evil))
    assert set(found.tags) == set(clean.tags)
    for tag in ("script", "style", "svg", "form", "meta", "article"):
        assert found.tags[tag] == clean.tags[tag]
    assert {(t, n) for t, n, _ in found.attributes} == {(t, n) for t, n, _ in clean.attributes}
    assert found.inside["script"] == clean.inside["script"]
    assert found.inside["style"] == clean.inside["style"]
    assert all(link.startswith("#") for link in found.values("href"))
    if evil.isprintable():
        assert evil in found.text
    else:
        assert not set(evil.replace("[31m", "")) & set(found.text)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("evil", [*EVIL[:-1], "\x1b[31m\u202e"])
@pytest.mark.parametrize("wanted", [(), ("--html=page.html",)], ids=["markdown", "html"])
def test_a_hostile_file_steers_no_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    evil: str,
    wanted: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_text(json.dumps(hostile(evil)), "utf-8")
    cli.main(["report", *wanted, "r.json"])
    shown = "".join(capsys.readouterr())
    assert shown
    assert [c for c in shown if not c.isprintable() and c not in "\n\u200d"] == []


def test_a_page_does_not_take_the_place_of_a_report_that_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps(as_json.tables(varied()))
    Path("r.json").write_text(text, "utf-8")
    assert cli.main(["report", f"--html={tmp_path}/r.json", "r.json"]) == 2
    assert "is one of the reports to read: give another path" in capsys.readouterr().err
    assert Path("r.json").read_text("utf-8") == text


def test_a_page_that_cannot_be_drawn_is_an_error_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_args: object) -> str:
        msg = "Vega-Lite to SVG conversion failed"
        raise ValueError(msg)

    monkeypatch.setattr("vl_convert.vegalite_to_svg", broken)
    monkeypatch.chdir(tmp_path)
    Path("r.json").write_text(json.dumps(as_json.tables(varied())), "utf-8")
    assert cli.main(["report", "--html=page.html", "r.json"]) == 2
    told = capsys.readouterr().err
    assert "page.html: the page cannot be drawn (ValueError: Vega-Lite to SVG conversion" in told
    assert not Path("page.html").exists()


@pytest.mark.parametrize("evil", EVIL[:-1])
def test_the_renderer_escapes_names_in_plots(evil: str) -> None:
    """A role of a kernel is a text of the report, and stands in a legend."""
    spec = plots.roles({"now": {evil: 1e-3}, evil: {"compute": 2e-3}})
    assert spec is not None
    found = Page(str(plots.svg(spec, "p", evil, evil)))
    assert "script" not in found.tags
    assert found.tags["svg"] == 1
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.values("role") == ["img"]
    assert evil in found.text


@settings(max_examples=50, deadline=None)
@given(anything, st.sampled_from(["record", "baseline", "windows", "loss", "parity_verdict"]))
def test_whatever_stands_in_a_report_it_is_shown_or_refused(value: Any, key: str) -> None:
    with contextlib.suppress(UsageError):
        html.render(document.of(tables(item(**{key: value})), "r.json"))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, (dict, list)) and one:
            yield from _places(one, (*path, key))


def test_a_value_of_a_wrong_kind_is_refused_by_file_and_key() -> None:
    """Each of the first failing item's, wherever it stands."""
    whole = as_json.tables(varied())
    whole["items"] = [{**whole["items"][0], "windows": [whole["items"][0]["windows"][0][:1]]}]
    places = [p for p in _places(whole["items"][0]) if p[0] not in ("sensors", "latency")]
    refused = 0
    for place in places:
        made = json.loads(json.dumps(whole))
        at = made["items"][0]
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = [{"odd": True}]
        try:
            document.of(made, "r.json")
        except UsageError as exc:
            refused += 1
            assert re.search(r"r\.json: (key \w+ of )?items", str(exc))  # noqa: PT017 - many of them
    assert refused > 0.9 * len(places)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("odd", [0, -1, 10**400, 1e308, math.inf, math.nan], ids=str)
def test_a_number_may_be_anything(odd: float) -> None:
    """Each of the first failing item's alone: the page is made, or the number is refused."""
    whole = as_json.tables(varied())
    first = {**whole["items"][0], "windows": [whole["items"][0]["windows"][0][:6]]}
    first["record"]["path"]["uses"] = first["record"]["path"]["uses"][:1]
    made = {**whole, "items": [first], "problems": []}
    for place in _places(first):
        at: Any = first
        for key in place[:-1]:
            at = at[key]
        kept = at[place[-1]]
        if isinstance(kept, (int, float)) and not isinstance(kept, bool):
            at[place[-1]] = odd
            with contextlib.suppress(UsageError):
                html.render(document.of(made, "r.json"))
            at[place[-1]] = kept


# --- plots -------------------------------------------------------------------------------------


def test_an_endless_interval_is_drawn_within_the_axis() -> None:
    """And one that is not a number is not drawn."""
    bar = plots.Bar(name="busy", value=0.5, low=-98.0, high=0.99)
    spec = plots.interval([bar], 0.05)
    assert spec is not None
    assert 'role="img" aria-labelledby="p-t p-d"><title id="p-t">t<' in plots.svg(
        spec, "p", "t", "d"
    )
    odd = plots.Bar(name="busy", value=float("nan"), low=0.0, high=0.0)
    assert plots.interval([odd], 0.05) is None


def test_long_repeats_are_drawn_as_stretches() -> None:
    """Ten thousand windows are no picture; what they achieved together is kept."""
    line = list(plots._line([(0.01, 8.0)] * 10_000))
    assert len(line) <= plots.MOST_POINTS
    assert {round(rate) for _, rate in line} == {800}
    assert list(plots._line([(0.0, 1.0), (float("nan"), 1.0), (1.0, 0.0)])) == []
    assert plots.windows([[]], 1.0, 1.0) is None
