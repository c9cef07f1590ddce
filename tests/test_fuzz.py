"""Whatever stands in a file, an option, an ini key or a marker, only errors of ours come out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from runtimes.fake import FakeRuntime
from scripted import comparison
from synthetic import KEY, RECORD

from pytest_portability import cli, fixture, records, run, selection, settings, targets
from pytest_portability.errors import PortabilityError, RecordError, UsageError
from pytest_portability.pipeline import Item
from pytest_portability.report import Entry, Report, document, markdown, terminal
from pytest_portability.report import json as as_json
from pytest_portability.verdicts import Verdict
from pytest_portability.versions.source import Sources

(CPU,) = targets.merge([targets.cpu_device(runtimes=("fake",), handle="cpu")])
RUNTIME = FakeRuntime()
ITEM = Item(target=CPU, runtime=RUNTIME, precision="native", batch=1)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """The same examples on every machine: what is found can be found again."""
    return profile(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


words = st.sampled_from(["0.05", "1e999", "nan", "-1", "cpu", "fail", "json:x", "9" * 5000])
huge = st.integers(2**62, 2**64) | st.sampled_from([10**400, -(10**400)])
scalars = (
    st.none() | st.booleans() | st.integers() | huge | st.floats() | st.text(max_size=9) | words
)
anything = st.recursive(
    scalars | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars.filter(lambda k: isinstance(k, Hashable)), inner, max_size=3)
    ),
    max_leaves=6,
)

# --- what a user sets --------------------------------------------------------------------------


@fuzz(250)
@given(st.sampled_from(sorted(settings.DECLARED)), anything, scalars)
def test_a_setting_is_parsed_or_refused(name: str, value: Any, text: Any) -> None:
    """The text in an ini key or an option, any value in a marker."""
    declared = settings.DECLARED[name]
    lines = [str(text)] if declared.many else str(text)
    for where in ("ini", "option", "marker") if declared.marker else ("ini", "option"):
        with contextlib.suppress(UsageError):
            given_: Any = {where: {name: value} if where == "marker" else lines}
            found = settings.resolve(name, **given_)
            assert isinstance(settings.on_target(found, bool, found), settings.Setting)


@fuzz(150)
@given(st.dictionaries(st.text(max_size=9), anything, max_size=3), st.tuples(scalars))
def test_marker_arguments_are_known_or_refused(kwargs: dict[str, Any], args: Any) -> None:
    for given_ in (args, ()):
        with contextlib.suppress(UsageError):
            settings.check_marker(given_, kwargs, " of x")


@fuzz(300)
@given(anything, anything)
def test_arguments_of_check_are_understood_or_refused(one: Any, two: Any) -> None:
    for parse in (
        lambda: fixture._profile({"seq": one}),
        lambda: fixture._profile(one),
        lambda: fixture._items(one, 1),
        lambda: fixture._line("name", one),
        lambda: run.options_for(ITEM, fixture._mapping("options", one), [RUNTIME]),
        lambda: run.options_for(ITEM, {"fake": one}, [RUNTIME]),
        lambda: run.checked_environment(fixture._mapping("x", {str(one): two})),
        lambda: run.registered_runtimes([one, two]),
        lambda: run.added_causes([one, two], ()),
    ):
        with contextlib.suppress(UsageError):
            parse()


@fuzz(200)
@given(st.lists(st.text(max_size=9) | words, min_size=1, max_size=3), st.text(max_size=20))
def test_patterns_and_expressions_mean_something_or_nothing(some: list[str], text: str) -> None:
    found = run.Discovery(targets=(CPU,), absents=())
    with contextlib.suppress(UsageError):
        run.items(found, [RUNTIME], patterns=some, names=some, precisions=("native",), batches=(1,))
    with contextlib.suppress(UsageError):
        targets.require((CPU,), (), some)
    assert selection.names(text)
    selection.asks(text)


@fuzz(60)
@given(text=st.text(max_size=12).filter(lambda t: "\0" not in t))
def test_a_version_is_found_or_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it looks like, it is no option of git."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for spec in (text, f"--{text}", f"{text}..{text}", f"HEAD:{text}"):
        with contextlib.suppress(UsageError):
            Sources(tmp_path).pair(spec)


# --- what is read ------------------------------------------------------------------------------

LITERALS = [
    *("1", "-1", "1.5", "nan", "-inf", "1e400", "9" * 400, "true", '""', '"x"', '"\\u0000"', "[]"),
    *("[1, 'a']", "{}", "{a = 1}", "1979-05-27", "'''\n'''", "[[[[[[[[]]]]]]]]", '"../../x"'),
]


def record_text(tmp_path: Path) -> str:
    """A record file as it is written."""
    path = tmp_path / "base" / "m" / f"{KEY.target}.toml"
    if not path.exists():
        records.write(path, {KEY: RECORD})
    return path.read_text(encoding="utf-8")


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[str], str]:
    """One thing that an editor, a merge or a broken disk does to a text."""
    where, other = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    literal, piece = draw(st.sampled_from(LITERALS)), draw(st.text(max_size=6))
    kind = draw(st.sampled_from(["value", "line", "twice", "cut", "insert", "key"]))

    def mutate(text: str) -> str:
        lines = text.split("\n")
        n = int(where * (len(lines) - 1))
        key, equals, _ = lines[n].partition(" = ")
        a, b = sorted((int(where * len(text)), int(other * len(text))))
        if kind == "value":
            lines[n] = f"{key} = {literal}" if equals else literal
        elif kind == "key":
            lines[n] = f"{piece}{lines[n]}"
        elif kind == "line":
            del lines[n]
        elif kind == "twice":
            lines.insert(n, lines[int(other * (len(lines) - 1))])
        elif kind == "cut":
            return text[:a] + text[b:]
        else:
            return text[:a] + piece + text[a:]
        return "\n".join(lines)

    return mutate


@fuzz(200)
@given(st.lists(mutations(), min_size=1, max_size=3))
def test_a_damaged_record_is_read_or_refused_by_name(
    tmp_path: Path, damage: list[Callable[[str], str]]
) -> None:
    """What is read can be written, shown and held against what it was."""
    text = record_text(tmp_path)
    for mutate in damage:
        text = mutate(text)
    path = tmp_path / "damaged" / "m" / f"{KEY.target}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused: list[str] = []
    found: dict[records.Key, records.Record] = {}
    try:
        found = records.read(path)
        records.write(path, found)
    except RecordError as exc:
        refused.append(str(exc))
    assert all(str(path) in text for text in refused)
    report = Report(recorded=frozenset(found))
    for key, record in found.items():
        shown = replace(comparison(Verdict.OK, key), record=record, baseline=record)
        report.entries.append(Entry(nodeid="n", key=key, comparison=shown))
    terminal.lines(report)
    markdown.render(document.of(json.loads(as_json.render(report)), ""))


@fuzz(40)
@given(st.lists(mutations(), min_size=1, max_size=2), st.sampled_from(["show", "diff", "merge"]))
def test_commands_survive_damaged_records(
    tmp_path: Path, damage: list[Callable[[str], str]], command: str
) -> None:
    """Exit codes and messages, no traceback."""
    text = record_text(tmp_path)
    base, other = str(tmp_path / "base"), tmp_path / "other"
    path = other / "m" / f"{KEY.target}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    for mutate in damage:
        text = mutate(text)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    arguments = {
        "show": ["show", str(other)],
        "diff": ["diff", base, str(other)],
        "merge": ["merge", base, str(other), f"--baselines={tmp_path / 'into'}"],
    }[command]
    assert cli.main(arguments) in {0, 1, 2}


@fuzz(200)
@given(st.lists(mutations(), min_size=1, max_size=3), anything, st.data())
def test_a_damaged_report_is_read_or_refused_by_name(
    tmp_path: Path, damage: list[Callable[[str], str]], value: Any, data: st.DataObject
) -> None:
    """A text that was damaged, and tables of which one value is something else."""
    entry = Entry(nodeid="n", key=KEY, comparison=comparison(Verdict.REGRESSED, KEY))
    tables = as_json.tables(Report(entries=[entry]))
    text = json.dumps(tables, indent=1).replace('": ', " = ")
    for mutate in damage:
        text = mutate(text)
    path = tmp_path / "r.json"
    path.write_bytes(text.replace(" = ", '": ').encode("utf-8", "surrogatepass"))
    with contextlib.suppress(PortabilityError):
        markdown.render(document.join([document.read(path)]))
    place = tables
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if data.draw(st.booleans()):
            place[key] = value
            break
        place = place[key]
    with contextlib.suppress(UsageError):
        markdown.render(document.join([document.of(tables, "r.json")]))
