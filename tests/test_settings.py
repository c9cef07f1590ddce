"""What the user set, where, and what is said about it."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch
from functools import partial
from typing import Any

import numpy as np
import pytest

from pytest_portability import settings
from pytest_portability.errors import UsageError
from pytest_portability.settings import Known, Setting, check_marker, on_target, resolve
from pytest_portability.verdicts import Verdict


def marked(name: str, value: object) -> Any:
    """The value a marker gives a setting."""
    return resolve(name, marker={name: value}).value


# --- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Setting(0.05, "default")),
        ({"ini": "0.1"}, Setting(0.1, "ini")),
        ({"ini": "0.1", "option": "0.2"}, Setting(0.2, "command line")),
        ({"ini": "0.1", "option": "0.2", "marker": {"tolerance": 0.3}}, Setting(0.3, "marker")),
        ({"ini": "0.1", "marker": {"tolerance": None}}, Setting(0.1, "ini")),
        ({"option": "0.2", "marker": {"seconds": 3}}, Setting(0.2, "command line")),
    ],
)
def test_the_nearest_place_wins_and_is_named(
    given: dict[str, Any], expected: Setting[float]
) -> None:
    assert resolve("tolerance", **given) == expected


@pytest.mark.parametrize("empty", ["", [], None])
def test_what_pytest_gives_for_a_key_that_is_not_there_is_not_set(empty: object) -> None:
    for name in settings.DECLARED:
        assert resolve(name, ini=empty).source == "default"


def test_every_default_is_what_its_own_text_parses_to() -> None:
    for name in ("tolerance", "seconds", "repeats", "time_limit", "missing", "inconclusive"):
        declared = settings.DECLARED[name]
        assert declared.parse(str(declared.default)) == declared.default


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1, 8", "1 8", "1,8,1", [1, 8], (1, 8, 8), [np.int64(1), 8]])
def test_batches_are_a_list_or_a_text_and_each_counts_once(value: object) -> None:
    assert marked("batches", value) == (1, 8)
    assert all(type(batch) is int for batch in marked("batches", value))


def test_batches_may_be_a_range() -> None:
    assert marked("batches", range(1, 4)) == (1, 2, 3)


@pytest.mark.parametrize("value", ["native,fp16", ["native", "fp16", "native"]])
def test_precisions_are_a_list_or_a_text_and_each_counts_once(value: object) -> None:
    assert marked("precisions", value) == ("native", "fp16")


@pytest.mark.parametrize("name", ["targets", "runtimes", "require"])
def test_names_are_a_list_or_a_text(name: str) -> None:
    assert resolve(name, option="amd-*, nvidia-h200").value == ("amd-*", "nvidia-h200")


def test_a_tolerance_may_differ_by_target() -> None:
    assert marked("tolerance", {"amd-*": 0.1, "*": "0.02"}) == {"amd-*": 0.1, "*": 0.02}


def test_a_known_verdict_may_be_given_by_name_or_as_itself() -> None:
    expected = Known(verdict=Verdict.REGRESSED, reason="ROCm#1234")
    for verdict in ("regressed", Verdict.REGRESSED):
        assert marked("known", {"amd-mi300x": (verdict, "ROCm#1234")}) == {"amd-mi300x": expected}


def test_a_report_may_go_to_a_path_with_a_drive_and_be_repeated() -> None:
    given = ["json:out/report.json", r"json:C:\out.json"]
    expected = (("json", "out/report.json"), ("json", r"C:\out.json"))
    assert resolve("report", option=given).value == expected


# --- mistakes ---------------------------------------------------------------------------------

PRECISIONS = "known: native, fp32, tf32, bf16, fp16, int8"
BATCH = "a batch size is a whole number from 1 on, found "
LIST = ", as a list or separated by commas"
FRACTION = "expected a fraction (0.05 is 5 %) above 0 and at most "
LOSS, ERROR = f"{FRACTION}0.99, found ", f"{FRACTION}10, found "
SECONDS = "expected seconds above 0 and at most 3600, found "
KNOWN = "expected a mapping from target pattern to (verdict, reason)"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("precisions", ["fp8"], f"unknown precision 'fp8'; {PRECISIONS}"),
        ("precisions", "fp16,half", f"unknown precision 'half'; {PRECISIONS}"),
        ("precisions", [], f"expected names{LIST}"),
        ("precisions", [16], "expected names, found [16]"),
        ("batches", [0], f"{BATCH}0"),
        ("batches", [-8], f"{BATCH}-8"),
        ("batches", "x", f"{BATCH}'x'"),
        ("batches", ["1.5"], f"{BATCH}'1.5'"),
        ("batches", [2.0], f"{BATCH}2.0"),
        ("batches", [1, True], f"{BATCH}True"),
        ("batches", [[1], [2]], f"{BATCH}[1]"),
        ("batches", [], f"expected batch sizes{LIST}"),
        ("batches", "", f"expected batch sizes{LIST}"),
        ("batches", 8, f"expected batch sizes{LIST}"),
        ("batches", {1, 8}, f"expected batch sizes{LIST}"),
        ("targets", 3, f"expected names{LIST}"),
        ("runtimes", ["torch", None], "expected names, found ['torch', None]"),
        ("tolerance", 0, f"{LOSS}0"),
        ("tolerance", -0.05, f"{LOSS}-0.05"),
        ("tolerance", 50, f"{LOSS}50"),
        ("tolerance", True, f"{LOSS}True"),
        ("tolerance", "5%", f"{LOSS}'5%'"),
        ("tolerance", float("nan"), f"{LOSS}nan"),
        ("tolerance", [0.1], f"{LOSS}[0.1]"),
        ("tolerance", {"amd-*": 0}, f"{LOSS}0"),
        ("parity", "none", f"{ERROR}'none'"),
        ("seconds", 0, f"{SECONDS}0"),
        ("seconds", float("inf"), f"{SECONDS}inf"),
        ("known", "regressed", KNOWN),
        ("known", ["amd-*"], KNOWN),
        ("known", {"amd-*": "ok"}, f"{KNOWN}, found 'ok' for 'amd-*'"),
        ("known", {"amd-*": ("ok",)}, f"{KNOWN}, found ('ok',) for 'amd-*'"),
        ("known", {"amd-*": ("slow", "why")}, "unknown verdict 'slow'; known: ok, improved, "),
        ("known", {"amd-*": ("ok", " ")}, "the reason for 'amd-*' is empty: say why it is known"),
        ("known", {"amd-*": (["ok"], "why")}, "unknown verdict ['ok']; known: ok, improved, "),
    ],
)
def test_a_wrong_marker_value_is_an_error_that_tells_what_is_right(
    name: str, value: object, text: str
) -> None:
    with pytest.raises(UsageError) as wrong:
        resolve(name, marker={name: value}, where=" of test_a.py::test_b")
    prefix = f"portability marker of test_a.py::test_b: {name} = {value!r}: "
    assert str(wrong.value).startswith(prefix + text)


def test_a_wrong_marker_value_may_be_an_array() -> None:
    """Comparing it with "not set" must not come to the question whether an array is true."""
    with pytest.raises(UsageError, match=rf"expected batch sizes{LIST}"):
        marked("batches", np.array([1, 8]))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("report", ["pdf:x.pdf"], "expected KIND:PATH with KIND one of json"),
        ("report", ["json"], "found 'json'"),
        ("report", ["json:"], "found 'json:'"),
        ("report", ["json:r", "html:./r"], "a path for each report, found two at './r'"),
        ("missing", "ignore", "valid: fail, warn"),
        ("inconclusive", "FAIL", "valid: fail, warn"),
        ("require", " , ", f"expected names{LIST}"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(name: str, value: object, text: str) -> None:
    with pytest.raises(UsageError) as wrong:
        resolve(name, option=value)
    assert str(wrong.value).startswith(f"--portability-{name} = {value!r}: ")
    assert text in str(wrong.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("repeats", "0", "expected a number of repeats from 1 to 20, found '0'"),
        ("repeats", "21", "expected a number of repeats from 1 to 20, found '21'"),
        ("repeats", "2.5", "expected a number of repeats from 1 to 20, found '2.5'"),
        ("time_limit", "2 min", "expected seconds above 0 and at most 86400, found '2 min'"),
        ("batches", "1,two", f"{BATCH}'two'"),
    ],
)
def test_a_wrong_ini_key_is_an_error_that_names_it(name: str, value: str, text: str) -> None:
    with pytest.raises(UsageError) as wrong:
        resolve(name, ini=value)
    assert str(wrong.value) == f"ini key portability_{name} = {value!r}: {text}"


def test_a_wrong_value_is_an_error_even_where_a_nearer_place_overrides_it() -> None:
    with pytest.raises(UsageError, match=r"^ini key portability_tolerance = 'x'"):
        resolve("tolerance", ini="x", option="0.1")


ARGUMENTS = "batches, known, parity, precisions, runtimes, seconds, targets, tolerance"


def test_an_unknown_marker_argument_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as wrong:
        check_marker((), {"batches": [1], "batch": [1]}, " of test_a.py::test_b")
    assert str(wrong.value) == (
        "portability marker of test_a.py::test_b: unknown argument 'batch'; valid: " + ARGUMENTS
    )


def test_a_positional_marker_argument_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(UsageError) as wrong:
        check_marker(([1, 8],), {}, "")
    assert str(wrong.value) == f"portability marker takes keyword arguments only: {ARGUMENTS}"


def test_every_argument_of_the_marker_is_accepted_by_name() -> None:
    check_marker((), dict.fromkeys(ARGUMENTS.split(", ")), "")


# --- one target -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("amd-mi300x", Setting(0.2, "marker")),
        ("amd-mi250x", Setting(0.1, "marker")),
        ("nvidia-h200", Setting(0.03, "ini")),
    ],
)
def test_the_first_pattern_that_fits_the_target_counts_else_the_next_place(
    target: str, expected: Setting[float]
) -> None:
    given = Setting({"amd-mi300x": 0.2, "amd-*": 0.1}, "marker")
    assert on_target(given, partial(fnmatch, target), Setting(0.03, "ini")) == expected


def test_a_single_value_counts_on_every_target() -> None:
    given = Setting(0.1, "command line")
    assert on_target(given, partial(fnmatch, "amd-mi300x"), Setting(0.05, "default")) is given


# --- declarations -------------------------------------------------------------------------------


def test_options_are_prefixed_and_their_help_tells_the_default() -> None:
    declared = [d for d in settings.DECLARED.values() if d.option]
    assert len(declared) <= 12
    for one in declared:
        assert one.option == f"--portability-{one.name}"
        assert one.metavar
    for one in settings.DECLARED.values():
        assert "default" in one.help or one.name == "known"


def test_importing_the_settings_brings_no_numpy() -> None:
    """Every pytest run imports them, with or without --portability."""
    script = (
        "import sys; from pytest_portability import settings; "
        "settings.resolve('batches', ini='1,8'); settings.resolve('tolerance', option='0.1'); "
        "print([m for m in ('numpy', 'torch', 'onnxruntime', 'psutil') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
