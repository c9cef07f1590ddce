"""What the user set, where, and what it means. Order: default < ini < command line < marker.

Every pytest run imports this module, so it must not import NumPy: types that do are imported where
a value is parsed.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytest_portability.errors import UsageError

if TYPE_CHECKING:
    from pytest_portability.verdicts import Verdict

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value and who set it: ``default``, ``ini``, ``command line`` or ``marker``."""

    value: T
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A verdict that is expected on a target, strictly, and why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One setting as it is declared: once, for all the places it can be set in.

    Attributes:
        name: marker argument; ``portability_<name>`` in the ini file.
        parse: turns a marker value or the text of an ini key or option into the value.
        default: the value nobody has to set.
        help: one sentence with unit and default.
        option: command-line flag, empty if there is none.
        metavar: how the flag's value is shown.
        marker: whether the marker may set it.
        many: whether the flag may be repeated and the ini key holds several lines.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    option: str = ""
    metavar: str = ""
    marker: bool = False
    many: bool = False

    @property
    def ini(self) -> str:
        """The ini key."""
        return f"portability_{self.name}"


def _parts(value: Any, what: str) -> Sequence[Any]:
    """The entries of a list, or of a text that separates them by commas or spaces."""
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(parts, Sequence) or isinstance(parts, bytes) or not parts:
        msg = f"expected {what}, as a list or separated by commas"
        raise ValueError(msg)
    return parts


def reason(text: str) -> str:
    """The reason for accepting worse figures.

    Raises:
        ArgumentTypeError: it is empty.
    """
    if not text.strip():
        msg = "is empty: say why worse figures are accepted"
        raise argparse.ArgumentTypeError(msg)
    return text.strip()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        msg = "expected the name of a commit, a directory of records or a target"
        raise ValueError(msg)
    return value.strip()


def _directory(value: Any) -> str:
    if not str(value).strip() or "\0" in str(value):
        msg = "expected a directory"
        raise ValueError(msg)
    return str(value)


def _words(value: Any) -> tuple[str, ...]:
    words = _parts(value, "names")
    if not all(isinstance(word, str) for word in words):
        msg = f"expected names, found {value!r}"
        raise ValueError(msg)
    return tuple(dict.fromkeys(words))


def _precisions(value: Any) -> tuple[str, ...]:
    from pytest_portability.runtimes import PRECISIONS  # noqa: PLC0415 - see the module docstring

    words = _words(value)
    for word in words:
        if word not in PRECISIONS:
            msg = f"unknown precision {word!r}; known: {', '.join(PRECISIONS)}"
            raise ValueError(msg)
    return words


def _batches(value: Any) -> tuple[int, ...]:
    whole = _whole(1, 2**63 - 1, "a batch size is a whole number from 1 on")
    return tuple(dict.fromkeys(whole(part) for part in _parts(value, "batch sizes")))


def _whole(low: int, high: int, expected: str) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) else index(value)
        except (ValueError, TypeError):
            number = low - 1
        if isinstance(value, bool) or not low <= number <= high:
            msg = f"{expected}, found {value!r}"
            raise ValueError(msg)
        return number

    return parse


def _number(low: float, high: float, unit: str) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (ValueError, TypeError, OverflowError):
            number = math.nan
        if not low < number <= high:
            msg = f"expected {unit} above {low:g} and at most {high:g}, found {value!r}"
            raise ValueError(msg)
        return number

    return parse


def _by_target(parse: Callable[[Any], float]) -> Callable[[Any], float | dict[str, float]]:
    def parse_mapping(value: Any) -> float | dict[str, float]:
        if isinstance(value, Mapping):
            return {str(pattern): parse(number) for pattern, number in value.items()}
        return parse(value)

    return parse_mapping


def _choice(*valid: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in valid:
            msg = f"valid: {', '.join(valid)}"
            raise ValueError(msg)
        return str(value)

    return parse


def _known(value: Any) -> dict[str, Known]:
    from pytest_portability.verdicts import Verdict  # noqa: PLC0415 - see the module docstring

    expected = "expected a mapping from target pattern to (verdict, reason)"
    if not isinstance(value, Mapping):
        raise ValueError(expected)
    known = {}
    for pattern, entry in value.items():
        if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 2:
            msg = f"{expected}, found {entry!r} for {pattern!r}"
            raise ValueError(msg)
        try:
            verdict = Verdict(entry[0])
        except ValueError:
            msg = f"unknown verdict {entry[0]!r}; known: {', '.join(v.value for v in Verdict)}"
            raise ValueError(msg) from None
        if not str(entry[1]).strip():
            msg = f"the reason for {pattern!r} is empty: say why it is known, such as an issue"
            raise ValueError(msg)
        known[str(pattern)] = Known(verdict=verdict, reason=str(entry[1]))
    return known


def _reports(value: Any) -> tuple[tuple[str, str], ...]:
    reports: list[tuple[str, str]] = []
    for entry in [value] if isinstance(value, str) else value:
        kind, _, path = entry.partition(":")
        if not path or "\0" in path or kind not in REPORT_KINDS:
            msg = f"expected KIND:PATH with KIND one of {', '.join(REPORT_KINDS)}, found {entry!r}"
            raise ValueError(msg)
        if os.path.normpath(path) in [os.path.normpath(taken) for _, taken in reports]:
            msg = f"expected a path for each report, found two at {path!r}"
            raise ValueError(msg)
        reports.append((kind, path))
    return tuple(reports)


REPORT_KINDS = ("json", "markdown", "html")

_LOSS = _number(0, 0.99, "a fraction (0.05 is 5 %)")
"""No build loses all of its throughput: a tolerance of 1 could never fail."""

_ERROR = _number(0, 10, "a fraction (0.05 is 5 %)")
_POLICY = _choice("fail", "warn")

DECLARED = {
    d.name: d
    for d in (
        Declared(
            name="baselines",
            parse=_directory,
            default="baselines",
            option="--portability-baselines",
            metavar="DIR",
            help="directory of the records, from the root directory, default baselines",
        ),
        Declared(
            name="against",
            parse=_text,
            default="",
            option="--portability-against",
            metavar="SPEC",
            help="hold this run against a commit, a directory or a target, default the baselines",
        ),
        Declared(
            name="require",
            parse=_words,
            default=(),
            option="--portability-require",
            metavar="LIST",
            help="targets that must be here (ids or patterns, comma-separated), default none",
        ),
        Declared(
            name="tolerance",
            parse=_by_target(_LOSS),
            default=0.05,
            option="--portability-tolerance",
            metavar="REL",
            marker=True,
            help="loss of sustained throughput to allow, as a fraction, default 0.05",
        ),
        Declared(
            name="seconds",
            parse=_number(0, 3600, "seconds"),
            default=1.5,
            option="--portability-seconds",
            metavar="S",
            marker=True,
            help="seconds to measure per repeat after warm-up, default 1.5",
        ),
        Declared(
            name="missing",
            parse=_POLICY,
            default="fail",
            option="--portability-missing",
            metavar="fail|warn",
            help="what an item without a record does, default fail",
        ),
        Declared(
            name="inconclusive",
            parse=_POLICY,
            default="warn",
            option="--portability-inconclusive",
            metavar="fail|warn",
            help="what an item that is too noisy to judge does, default warn",
        ),
        Declared(
            name="report",
            parse=_reports,
            default=(),
            option="--portability-report",
            metavar="KIND:PATH",
            many=True,
            help="write a report, such as json:report.json; repeatable, default none",
        ),
        Declared(
            name="batches",
            parse=_batches,
            default=(1,),
            marker=True,
            help="batch sizes to measure at, default 1",
        ),
        Declared(
            name="precisions",
            parse=_precisions,
            default=("native",),
            marker=True,
            help="numeric modes to build (fp32, tf32, bf16, fp16, int8), default native",
        ),
        Declared(
            name="targets",
            parse=_words,
            default=None,
            marker=True,
            help="targets to build for (ids or patterns), default the accelerators, else the CPU",
        ),
        Declared(
            name="runtimes",
            parse=_words,
            default=None,
            marker=True,
            help="runtimes to build with (names or patterns), default those native to the target",
        ),
        Declared(
            name="parity",
            parse=_by_target(_ERROR),
            default=None,
            marker=True,
            help="relative L2 error of the outputs to allow, default by effective precision",
        ),
        Declared(
            name="known",
            parse=_known,
            default={},
            marker=True,
            help="target pattern to (verdict, reason) that is expected there, strictly",
        ),
        Declared(
            name="repeats",
            parse=_whole(1, 20, "expected a number of repeats from 1 to 20"),
            default=6,
            help="most child processes per item while the comparison is undecided, default 6",
        ),
        Declared(
            name="time_limit",
            parse=_number(0, 86400, "seconds"),
            default=120.0,
            help="seconds after which a repeat is killed, default 120",
        ),
    )
}


def resolve(
    name: str,
    *,
    ini: Any = None,
    option: Any = None,
    marker: Mapping[str, Any] | None = None,
    where: str = "",
) -> Setting[Any]:
    """The value of a setting and who set it; None stands for "not set here".

    Raises:
        UsageError: the value is not valid; it names the place, the value and what is valid.
    """
    declared = DECLARED[name]
    found: Setting[Any] = Setting(declared.default, "default")
    # An ini key that was not given is an empty text or list, too. An option or a marker that was
    # given an empty one was given it, and that is an error: a variable may be unset.
    given = {"ini": ini or None, "command line": option, "marker": (marker or {}).get(name)}
    places = {
        "ini": f"ini key {declared.ini}",
        "command line": declared.option,
        "marker": f"portability marker{where}: {name}",
    }
    for source, value in given.items():
        if value is None:
            continue
        try:
            found = Setting(declared.parse(value), source)
        except ValueError as exc:
            msg = f"{places[source]} = {value!r}: {exc}"
            raise UsageError(msg) from exc
    return found


def check_marker(args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> None:
    """Refuse a marker argument that does not exist.

    Raises:
        UsageError: it lists the valid ones.
    """
    valid = sorted(d.name for d in DECLARED.values() if d.marker)
    if args:
        msg = f"portability marker{where} takes keyword arguments only: {', '.join(valid)}"
        raise UsageError(msg)
    for name in kwargs:
        if name not in valid:
            msg = f"portability marker{where}: unknown argument {name!r}; valid: {', '.join(valid)}"
            raise UsageError(msg)


def on_target(
    setting: Setting[Any], meant: Callable[[str], bool], fallback: Setting[Any]
) -> Setting[Any]:
    """The value of a setting that may be a mapping from target pattern to value, on one target.

    Args:
        setting: the value, or the mapping.
        meant: whether a pattern means the target; the first that does counts.
        fallback: where none does.
    """
    if not isinstance(setting.value, Mapping):
        return setting
    for pattern, value in setting.value.items():
        if meant(pattern):
            return Setting(value, setting.source)
    return fallback


def declare(parser: Any) -> None:
    """Declare options and ini keys to pytest's parser, all but ``--update-baselines``."""
    group = parser.getgroup("portability", "performance portability of models")
    group.addoption(
        "--portability",
        action="store_true",
        help="build, measure and judge the tests that ask for the portability fixture",
    )
    group.addoption(
        "--portability-accept",
        metavar="REASON",
        type=reason,
        help="with --update-baselines: also write records that are worse, and why",
    )
    for declared in DECLARED.values():
        if declared.option:
            group.addoption(
                declared.option,
                metavar=declared.metavar,
                action="append" if declared.many else "store",
                default=None,
                help=f"{declared.help} (ini: {declared.ini})",
            )
        if declared.name != "known":
            kind: Any = "linelist" if declared.many else "string"
            parser.addini(declared.ini, declared.help, type=kind, default=None)
