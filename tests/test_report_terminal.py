"""The table at the end of a run, its header, and what is shown while it runs."""

from __future__ import annotations

import errno
import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from project import PLAIN, Project, output
from scripted import comparison
from synthetic import KEY, RECORD, measurement

from pytest_portability.attribute import Cause
from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Accepted, Key
from pytest_portability.report import Entry, Report, terminal
from pytest_portability.targets import Target
from pytest_portability.verdicts import Verdict

GOLDENS = Path(__file__).parent / "goldens"

H200 = Target(
    vendor="nvidia",
    arch="sm_90",
    product="NVIDIA H200",
    platform="cuda",
    facts={"driver": "580.95"},
)
CPU = Target(vendor="cpu", arch="x86_64", product="intel 6.207 2c", platform="cpu")


STEP = Accepted(
    date="2026-03-01T12:00:00+00:00", reason="x", verdict="regressed", before=800.0, after=760.0
)


def entry(verdict: Verdict, **fields: Any) -> Entry:
    """An entry on the accelerator; fields of the comparison or of the entry."""
    own = {n: fields.pop(n) for n in ("causes", "update", "again") if n in fields}
    key = Key(
        model=fields.pop("model", verdict.value),
        target=H200.id,
        runtime="onnxruntime.cuda",
        precision="fp16",
        batch=8,
        profile=fields.pop("profile", ()),
    )
    found = comparison(verdict, key, **fields)
    nodeid = f"test_it.py::test_it[{verdict.value}]"
    measured = measurement() if found.record else None
    return Entry(nodeid=nodeid, key=key, comparison=found, measurement=measured, **own)


def every() -> Report:
    """A run with every verdict, updates and odd figures."""
    fusion = Cause(
        kind="fusion",
        summary="Attention ran as 1 fused kernel ×6, now MatMul ×12 + Softmax ×6",
        share=0.89,
        evidence=("6 nodes", "changed with it: onnxruntime 1.31.1 → 1.32.0; op-set 20 → 21"),
    )
    small = [Cause(kind="kernel", summary=f"kernel {n}", share=0.01) for n in range(6)]
    rest = Cause(kind="unexplained", summary="2 % of the loss", share=None)
    parity_ok = ParityVerdict(faithful=True, same_model=True)
    parity_bad = ParityVerdict(faithful=False, same_model=None, failures=("y is off",))
    failing = entry(Verdict.PARITY, parity=parity_bad)
    assert failing.comparison.record is not None
    smaller = failing.comparison.record.figures
    unfit = entry(Verdict.UNFIT)
    assert unfit.comparison.record is not None
    halved = replace(unfit.comparison.record, figures=replace(smaller, batch_effective=4))
    tokens = replace(
        unfit.comparison.record, figures=replace(smaller, throughput=41.2, unit="tokens")
    )
    return Report(
        targets=(H200, CPU),
        recorded=frozenset(
            replace(KEY, target=target, batch=batch)
            for target, number in ((H200.id, 4), ("amd-mi300x", 3), ("apple-m2-max", 1))
            for batch in range(number)
        ),
        entries=[
            entry(Verdict.OK, parity=parity_ok, warnings=("threads: 2 → 1, at no cost",)),
            entry(Verdict.OK, model="tokens", record=tokens, profile=(("seq", 128),)),
            entry(Verdict.OK, model="refreshed", update="refreshed"),
            entry(Verdict.OK, model="unchanged", update="unchanged"),
            entry(Verdict.IMPROVED),
            entry(Verdict.IMPROVED, model="faster", update="written"),
            entry(Verdict.OK, model="stepped", baseline=replace(RECORD, accepted=(STEP,))),
            entry(
                Verdict.REGRESSED,
                causes=(fusion, *small, rest),
                memory_rel=0.12,
                again=("--portability-tolerance=0.1", "sub/test_it.py::test_it[a b]"),
                machine_rel=0.2,
            ),
            entry(
                Verdict.REGRESSED,
                model="refused",
                update='refused: regressed needs --portability-accept="why"',
            ),
            entry(Verdict.REGRESSED, model="accepted", update="written", causes=(rest,)),
            failing,
            entry(Verdict.INTERFACE),
            entry(Verdict.PLACEMENT),
            entry(Verdict.MEMORY, memory_rel=0.4, memory_grew=True),
            replace(unfit, comparison=replace(unfit.comparison, record=halved)),
            entry(Verdict.STALE),
            entry(Verdict.MISSING),
            entry(Verdict.MISSING, model="recorded", update="written"),
            entry(Verdict.MISSING, model="unwritten", update="failed: no space"),
            entry(Verdict.INCONCLUSIVE, machine_rel=0.2),
            entry(Verdict.ERROR),
            entry(Verdict.SKIPPED),
        ],
    )


def test_the_whole_table(request: pytest.FixtureRequest) -> None:
    """Compared whole; ``PORTABILITY_GOLDENS=write`` writes it anew, to be read in the diff."""
    del request
    path = GOLDENS / "table.txt"
    text = "\n".join([terminal.header(every()), *terminal.lines(every())]) + "\n"
    if os.environ.get("PORTABILITY_GOLDENS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_header_says_what_is_here_and_what_is_not() -> None:
    """With architecture and driver of accelerators, and the number of records of the absent."""
    assert terminal.header(every()) == (
        "portability: nvidia-h200 (sm_90, driver 580.95) · cpu-intel-6.207-2c · "
        "not here: amd-mi300x (3 records), apple-m2-max (1 record)"
    )
    assert terminal.header(Report(searched=True)) == "portability: no target"


def test_the_header_says_nothing_of_hardware_that_nobody_looked_for() -> None:
    """Where collection failed, every record's target would be called absent."""
    unsearched = Report(recorded=frozenset({replace(KEY, target="amd-mi300x")}))
    assert terminal.header(unsearched) == (
        "portability: no test got as far as to ask which devices are here"
    )


def test_a_slower_machine_is_said_once_per_target() -> None:
    """It is never charged to a build."""
    made = Report(entries=[entry(Verdict.OK, model=f"m{n}", machine_rel=0.2) for n in range(3)])
    (line,) = [line for line in terminal.lines(made) if "yardstick" in line]
    assert line == (
        "nvidia-h200: by its yardstick the machine is 20 % slower than when the records were "
        "made; builds are judged relative to it"
    )
    steady = Report(entries=[entry(Verdict.OK, machine_rel=0.01)])
    assert not any("yardstick" in line for line in terminal.lines(steady))


def test_a_report_of_skips_has_no_table() -> None:
    """There is nothing to show but the reasons, which are elsewhere."""
    assert terminal.lines(Report(entries=[entry(Verdict.SKIPPED)])) == []


def test_the_last_words_of_a_child_are_in_the_failure() -> None:
    """Indented, below the reason."""
    text = terminal.failure(entry(Verdict.ERROR), log="loading\nSegmentation fault")
    assert text.splitlines() == [
        "ERROR: error onnxruntime.cuda-fp16-b8 on nvidia-h200",
        "  error on purpose",
        "  last output of the child process:",
        "    loading",
        "    Segmentation fault",
        '  measure it again: pytest --portability "test_it.py::test_it[error]"',
    ]


def test_the_table_is_printed_without_colour_codes(project: Project) -> None:
    """In a log, and with NO_COLOR."""
    project.make("def test_it(portability): portability.check('m.onnx', None, name='ok')")
    assert "\x1b[" not in output(project.run("--portability"))


def test_a_run_without_a_terminal_reporter_works(project: Project) -> None:
    """``-p no:terminal`` has nowhere to print to."""
    project.make("def test_it(portability): portability.check('m.onnx', None, name='ok')")
    assert project.run("--portability", "-p", "no:terminal").ret == 0


def test_there_is_no_section_without_the_flag(project: Project) -> None:
    """Nor a header."""
    project.make()
    result = project.run("-v")
    result.stdout.no_fnmatch_line("*== portability ==*")
    result.stdout.no_fnmatch_line("portability: *")


# --- progress ---------------------------------------------------------------------------------


class Columns:
    """Stands in for pytest's terminal writer."""

    fullwidth = 30
    width_of_current_line = 12


class Tty(io.StringIO):
    """A terminal, as far as asked."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[terminal.Progress, Any]]:
    """Progress on a terminal, and the end of a pipe that gets it."""
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as received, os.fdopen(write, "w") as stream:
        fake = Tty()
        fake.fileno = stream.fileno  # type: ignore[method-assign] # what is duplicated
        monkeypatch.setattr(sys, "stdout", fake)
        monkeypatch.setenv("TERM", "xterm")
        progress = terminal.Progress(Columns())
        yield progress, received
        progress.close()


def test_progress_stays_behind_pytests_own_line(
    screen: tuple[terminal.Progress, Any],
) -> None:
    """Cut to the room there is; the cursor returns."""
    progress, received = screen
    progress.show("vad: reading the model")
    assert received.read(1000) == b"\x1b7\x1b[K vad: reading the\x1b8"
    progress.show("")
    assert received.read(1000) == b"\x1b7\x1b[K\x1b8"


def test_progress_tells_how_many_items_and_how_long_the_others_take(
    screen: tuple[terminal.Progress, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By those done; nothing where it would be less than a minute, or items run again."""
    del screen
    now = [1000.0]
    progress = terminal.Progress(None, lambda: now[0])
    told = []
    progress.expect(3)
    for passed in (60.0, 120.0, 1.0, 1.0):
        progress.begin()
        told.append(progress._place())
        now[0] += passed
    assert told == ["1/3: ", "2/3, 2 min left: ", "3/3, 2 min left: ", ""]


def test_the_time_that_is_left_falls_while_an_item_runs(
    screen: tuple[terminal.Progress, Any],
) -> None:
    del screen
    now = [0.0]
    progress = terminal.Progress(None, lambda: now[0])
    progress.expect(3)
    told = []
    for seconds in (0.0, 120.0):
        now[0] = seconds
        progress.begin()
    for seconds in (120.0, 180.0, 300.0, 420.0):
        now[0] = seconds
        told.append(progress._place())
    assert told == ["2/3, 4 min left: ", "2/3, 3 min left: ", "2/3, 1 min left: ", "2/3: "]


def test_progress_of_a_single_item_counts_nothing() -> None:
    progress = terminal.Progress(None)
    progress.expect(1)
    progress.begin()
    assert not progress._place()


def test_a_narrow_terminal_gets_two_lines_for_a_row() -> None:
    entries = [entry(Verdict.OK), entry(Verdict.ERROR)]
    wide = terminal.lines(Report(entries=entries))
    assert terminal.lines(Report(entries=entries), len(wide[0])) == wide
    narrow = terminal.lines(Report(entries=entries), 60)
    assert narrow[:4] == [
        "ok  ok onnxruntime.cuda-fp16 batch 8 on nvidia-h200",
        "    800 per second · -1.0 % ±0.8 % vs baseline · +0 % memory · 1.0e-07 parity",
        "ERROR  error onnxruntime.cuda-fp16 batch 8 on nvidia-h200",
        "        error on purpose",
    ]


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_without_a_cursor_gets_no_progress(
    screen: tuple[terminal.Progress, Any], monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    """Nor does one that does not say."""
    del screen
    monkeypatch.delenv("TERM")
    if term:
        monkeypatch.setenv("TERM", term)
    quiet = terminal.Progress(Columns())
    quiet.show("vad")
    quiet.close()
    assert quiet._stream is None


def in_a_terminal(project: Project, *args: str, **environment: str) -> str:
    """What a run writes to a pseudo-terminal."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLAIN, "--portability", *args],
        cwd=project.path,
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", **environment},
    )
    os.close(other)
    received = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError as exc:
            assert exc.errno == errno.EIO  # noqa: PT017 - how Linux says that the other end closed
            break
        if not chunk:
            break
        received += chunk
    os.close(main)
    process.wait()
    return received.decode()


@pytest.mark.parametrize("args", [(), ("-v",), ("-s",), ("--capture=sys",)], ids=" ".join)
def test_progress_on_a_terminal_is_not_captured(project: Project, args: tuple[str, ...]) -> None:
    """Whatever the capture; it is no output of the test, and gone when the test is over."""
    project.make(
        "def test_it(portability): portability.check('m.onnx', None, name='regressed')",
        conftest="""
        from scripted import Scripted

        class Telling(Scripted):
            def __init__(self, *args, progress, **given):
                super().__init__(*args, **given)
                self.progress = progress

            def check(self, item, ask):
                self.progress("measuring it")
                try:
                    return super().check(item, ask)
                finally:
                    self.progress("")

        pipeline.Pipeline = Telling
        """,
    )
    shown = in_a_terminal(project, *args)
    assert shown.count("\x1b7\x1b[K measuring it\x1b8") == 1
    assert shown.count("\x1b7\x1b[K\x1b8") == 1
    assert "Captured stdout" not in shown


def test_no_color_means_no_color(project: Project) -> None:
    """In our lines as in pytest's."""
    project.make("def test_it(portability): portability.check('m.onnx', None, name='skipped')")
    assert "\x1b[31mportability: nothing was measured" in in_a_terminal(project)
    assert "\x1b[31m" not in in_a_terminal(project, NO_COLOR="1")


def test_what_a_runtime_wrote_does_not_steer_the_terminal() -> None:
    some = entry(Verdict.ERROR, reason="died: \x1b[31mred\x00")
    text = terminal.failure(some, log="\x1b]0;title\x07")
    assert "\x1b" not in text
    assert "died: \\x1b[31mred\\x00" in text
