"""Every way a child process can end, and what the caller is told."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest

from pytest_portability import answers
from pytest_portability import servers as servers_module
from pytest_portability.errors import BuildError, ChildFailed, DoesNotFit, Unsupported
from pytest_portability.servers import CAN_FORK, Servers

if sys.platform != "linux":
    pytest.skip("processes are watched through /proc", allow_module_level=True)

HERE = sys.modules[__name__]
forks = pytest.mark.skipif(not CAN_FORK, reason="fork servers only")


@pytest.fixture(
    params=[pytest.param(True, marks=forks, id="fork"), pytest.param(False, id="spawn")]
)
def children(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with Servers(fork=request.param) as made:
        yield made


@pytest.fixture
def forking() -> Iterator[Servers]:
    if not CAN_FORK:
        pytest.skip("fork servers only")
    with Servers(fork=True) as made:
        yield made


def call(children: Servers, function: Callable[..., Any], *args: object, **options: Any) -> Any:
    """Call a function of this module, which a child cannot import."""
    return children.call(function, *args, by_value=[HERE], **options)


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether the process ends in time; a zombie that nobody has reaped yet has ended."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # there is no event to wait for: it is not our child


def package(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


# --- values -----------------------------------------------------------------------------------


def test_a_call_returns_the_value_of_the_function(children: Servers) -> None:
    assert call(children, lambda a, b: {"sum": a + b}, 2, 3) == {"sum": 5}


def test_functions_and_classes_of_a_test_module_travel_by_value(children: Servers) -> None:
    """The child cannot import this module: pytest's importlib mode gave it a name of its own."""
    assert call(children, helped, Point(1)).x == 2


class Point:
    """A class that the child cannot import."""

    def __init__(self, x: int) -> None:
        self.x = x


def helped(point: Point) -> Point:
    return Point(point.x + STEP)


STEP = 1


def test_a_module_that_nobody_can_import_is_sent_by_value_all_the_same(children: Servers) -> None:
    """A conftest that another one has pushed out of ``sys.modules`` must not break the call."""
    module = type(sys)("conftest_of_another_folder")
    exec("def f():\n    return 5", module.__dict__)
    assert children.call(module.f, by_value=[module]) == 5


def test_large_arrays_go_there_and_back(children: Servers) -> None:
    big = np.arange(50_000_000 // 8, dtype=np.int64)
    assert np.array_equal(children.call(np.negative, big), -big)


def test_each_call_is_a_fresh_process(children: Servers) -> None:
    assert call(children, os.getpid) != call(children, os.getpid)


def test_the_child_works_in_the_callers_directory_with_the_callers_path(
    children: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(children, os.getcwd)  # the server is already there when both change
    package(tmp_path, "made_later", "VALUE = 7")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert call(children, later) == (str(tmp_path), 7)


def later() -> tuple[str, int]:
    import made_later  # type: ignore[import-not-found] # noqa: PLC0415 - made by the test

    return str(Path.cwd()), made_later.VALUE


def test_a_path_entry_that_is_not_text_is_left_out(
    children: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Import ignores such an entry, so it must not break the call either."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert call(children, lambda: 1) == 1


def test_a_file_beside_the_tests_with_a_standard_name_is_not_imported(
    children: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -c`` puts the working directory first; pytest itself does not."""
    package(tmp_path, "json", "raise ImportError('this is the user data module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert call(children, lambda: 1) == 1


def use_standard_modules() -> tuple[str, float]:
    import random  # noqa: PLC0415 - which one is the question
    import statistics  # noqa: PLC0415

    return random.__name__, statistics.fmean([1.0, np.random.default_rng(0).random() * 0 + 1])


def test_a_file_with_a_standard_name_on_the_callers_path_is_not_imported(
    children: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pytest puts the directory of a test first, and hides what is not imported yet."""
    for name in ("json", "random", "statistics", "secrets", "select"):
        package(tmp_path, name, f"raise ImportError('this is the user\\'s {name}')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert call(children, use_standard_modules) == ("random", 1.0)
    assert call(children, lambda: sys.path[0]) == str(tmp_path)


# --- environment ------------------------------------------------------------------------------


def variable(name: str) -> str | None:
    return os.environ.get(name)


def test_a_variable_set_by_a_test_reaches_the_child(
    children: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(children, variable, "PORTABILITY_TEST") is None
    monkeypatch.setenv("PORTABILITY_TEST", "set")
    assert call(children, variable, "PORTABILITY_TEST") == "set"


def test_the_callers_own_variable_wins_over_the_default_of_a_runtime(
    children: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"OMP_WAIT_POLICY": "PASSIVE"}
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert call(children, variable, "OMP_WAIT_POLICY", environment=defaults) == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert call(children, variable, "OMP_WAIT_POLICY", environment=defaults) == "ACTIVE"
    assert children.environment(defaults)["OMP_WAIT_POLICY"] == "ACTIVE"


def test_one_server_serves_one_environment(
    forking: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pytest itself rewrites for every test, PYTEST_CURRENT_TEST, starts no new server."""
    first = call(forking, os.getppid)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another test (call)")
    assert call(forking, os.getppid) == first
    monkeypatch.setenv("PORTABILITY_TEST", "other")
    assert call(forking, os.getppid) != first
    monkeypatch.delenv("PORTABILITY_TEST")
    assert call(forking, os.getppid) == first


def test_the_least_recently_used_server_is_closed(
    forking: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "MOST_SERVERS", 2)
    first, second, third = (
        call(forking, os.getppid, environment={"PORTABILITY_TEST": value}) for value in "121"
    )
    assert first == third
    call(forking, os.getppid, environment={"PORTABILITY_TEST": "3"})
    assert gone(second)
    assert psutil.pid_exists(first)


def test_closing_ends_every_server_and_may_be_done_twice(forking: Servers) -> None:
    server = call(forking, os.getppid)
    forking.close()
    forking.close()
    assert gone(server)
    assert not forking.directory.exists()


# --- preloaded packages -----------------------------------------------------------------------


def loaded(name: str) -> bool:
    return name in sys.modules


def test_a_preloaded_package_is_there_before_the_call(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "preloaded", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert call(forking, loaded, "preloaded", preload=["preloaded"])


def test_a_function_named_behind_a_module_is_called_once_before_the_calls(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(
        tmp_path,
        "learned",
        "import os\ndef learn():\n    os.environ['LEARNED_IN'] = str(os.getpid())",
    )
    monkeypatch.syspath_prepend(tmp_path)

    def learner() -> tuple[str, int]:
        return os.environ["LEARNED_IN"], os.getppid()

    for _ in range(2):
        pid, parent = call(forking, learner, preload=["learned:learn"])
        assert int(pid) == parent


def test_a_function_that_is_not_there_is_reported_with_its_module(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "unlearned", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert call(forking, lambda: 1, preload=["unlearned:learn"]) == 1
    assert "has no attribute 'learn'" in forking.unusable["unlearned:learn"]


def test_a_package_that_is_not_installed_is_left_out(forking: Servers) -> None:
    names = ["no_such_package_here", "no_such_package_here.part", "wave"]
    assert call(forking, loaded, "wave", preload=names)
    assert not forking.unusable


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ImportError('libcudart.so.13: not found')", r"ImportError: libcudart.so.13"),
        ("import no_such_dependency", r"No module named 'no_such_dependency'"),
        ("raise SystemExit(3)", r"SystemExit: 3"),
        ("import os; os._exit(9)", r"^the process ended with exit code 9"),
        ("import os; os.abort()", r"was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", r"was killed by SIGSEGV\n(.*\n)*.*broken\.py"),
    ],
    ids=["ImportError", "dependency", "SystemExit", "exit", "abort", "segfault"],
)
def test_a_package_that_breaks_at_import_is_reported_and_left_out(
    forking: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    reason: str,
) -> None:
    package(tmp_path, "broken", text)
    package(tmp_path, "fine", "")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert call(forking, loaded, "fine", preload=["broken", "fine"])
    assert list(forking.unusable) == ["broken"]
    assert re.search(reason, forking.unusable["broken"])


def test_a_package_that_hangs_at_import_is_reported_and_left_out(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "hanging", "import time; time.sleep(600)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(servers_module, "START_LIMIT_S", 1.0)
    assert call(forking, lambda: 1, preload=["hanging"]) == 1
    assert "took longer than 1 s" in forking.unusable["hanging"]


def test_what_a_package_prints_at_import_disturbs_no_call(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would break the protocol, or come out of the buffer of every child again."""
    package(
        tmp_path,
        "chatty",
        """
        import ctypes, os
        print("banner")
        os.write(1, b"raw banner\\n")
        ctypes.CDLL(None).puts(b"C banner")
        """,
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert call(forking, loaded, "chatty", preload=["chatty"])
    with pytest.raises(ChildFailed) as failed:
        call(forking, fail, preload=["chatty"])
    assert "banner" not in failed.value.log


def test_a_server_that_cannot_start_says_why(
    forking: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/nowhere"])
    with pytest.raises(ChildFailed, match="a fork server did not start") as failed:
        call(forking, lambda: 1)
    assert "No module named" in failed.value.log


def test_a_server_that_was_killed_is_replaced(forking: Servers) -> None:
    """The kernel's out-of-memory killer may take one between two calls."""
    server = call(forking, os.getppid)
    os.kill(server, signal.SIGKILL)
    assert gone(server)
    assert call(forking, os.getppid) != server


def test_a_server_that_dies_with_a_child_is_an_error_and_is_replaced(forking: Servers) -> None:
    with pytest.raises(ChildFailed, match="the fork server that should run the child died"):
        call(forking, kill_parent)
    assert call(forking, lambda: 1) == 1


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


# --- children that fail -----------------------------------------------------------------------


def say(text: str) -> None:
    print(text)  # noqa: T201 - what a child prints is what these tests are about


def fail() -> NoReturn:
    msg = "boom"
    raise ValueError(msg)


def segfault() -> None:
    say("last words")
    ctypes.string_at(0)


def abort() -> None:
    ctypes.CDLL(None).puts(b"last words of C")
    os.abort()


def kill_itself() -> None:
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGKILL)


def real_time_signal() -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 2)


def leave() -> None:
    say("last words")
    os._exit(3)


@pytest.mark.parametrize(
    ("function", "text", "number", "log"),
    [
        (fail, "ValueError: boom", None, r"Traceback(.*\n)+.*in fail"),
        (sys.exit, "SystemExit", None, "Traceback"),
        (
            segfault,
            "the child was killed by SIGSEGV",
            signal.SIGSEGV,
            r"last words(.*\n)+.*segfault",
        ),
        (abort, "the child was killed by SIGABRT", signal.SIGABRT, "last words of C"),
        (kill_itself, "the child was killed by SIGKILL", signal.SIGKILL, "last words"),
        (real_time_signal, "the child was killed by signal", signal.SIGRTMIN + 2, ""),
        (leave, "the child ended with exit code 3 and no result", None, "last words"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_child_that_fails_leaves_its_reason_and_its_last_words(
    children: Servers, function: Callable[[], None], text: str, number: int | None, log: str
) -> None:
    with pytest.raises(ChildFailed, match=f"^{text}") as failed:
        call(children, function)
    assert failed.value.signal_number == number
    assert re.search(log, failed.value.log)
    assert call(children, lambda: "next") == "next"


def test_a_failed_child_leaves_the_server_running(forking: Servers) -> None:
    server = call(forking, os.getppid)
    for function in (fail, segfault, leave):
        with pytest.raises(ChildFailed):
            call(forking, function)
    assert call(forking, os.getppid) == server


def die_doing(how: Callable[[], None]) -> str:
    answers.doing("reading the model")
    answers.doing("timing it")
    how()
    return "done"


def hang() -> None:
    time.sleep(600)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (segfault, r"the child was killed by SIGSEGV while timing it$"),
        (leave, r"the child ended with exit code 3 and no result while timing it$"),
        (hang, r"no answer within the time limit of 1\.5 s while timing it; the child was killed"),
    ],
)
def test_a_child_that_dies_is_told_with_what_it_was_doing(
    children: Servers, how: Callable[[], None], text: str
) -> None:
    with pytest.raises(ChildFailed, match=text):
        call(children, die_doing, how, time_limit_s=1.5)
    assert call(children, die_doing, int) == "done"


def die_after_leaving(how: Callable[[], None]) -> str:
    answers.leave("what was known by then")
    answers.doing("adding more")
    how()
    return "everything"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (segfault, "the child was killed by SIGSEGV while adding more"),
        (leave, "the child ended with exit code 3 and no result while adding more"),
        (
            hang,
            "no answer within the time limit of 1.5 s while adding more",
        ),
    ],
)
def test_what_a_child_has_left_outlives_it(
    children: Servers, how: Callable[[], None], text: str
) -> None:
    left = call(children, die_after_leaving, how, time_limit_s=1.5)
    assert left == "what was known by then"
    assert children.unfinished.partition(";")[0] == text
    assert call(children, die_after_leaving, int) == "everything"
    assert children.unfinished == ""


def test_what_a_child_raises_counts_more_than_what_it_has_left(children: Servers) -> None:
    with pytest.raises(ChildFailed, match="ValueError: boom"):
        call(children, die_after_leaving, fail)


def write_pid_and_hang(file: Path) -> None:
    file.write_text(str(os.getpid()), encoding="ascii")
    say("hanging")
    time.sleep(600)


def test_a_child_that_hangs_is_killed_at_its_limit(children: Servers, tmp_path: Path) -> None:
    expected = r"no answer within the time limit of 1\.5 s; the child was killed"
    with pytest.raises(ChildFailed, match=expected) as failed:
        call(children, write_pid_and_hang, tmp_path / "pid", time_limit_s=1.5)
    assert failed.value.signal_number == signal.SIGKILL
    assert failed.value.log == "hanging"
    assert gone(int((tmp_path / "pid").read_text(encoding="ascii")), within_s=0)
    assert call(children, lambda: 1) == 1


def start_sleeper(*, own_session: bool, then: str) -> int:
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=own_session)
    say(f"sleeper {sleeper.pid}")
    if then == "hang":
        time.sleep(600)
    if then == "fail":
        fail()
    return sleeper.pid


@pytest.mark.parametrize("own_session", [False, True], ids=["same session", "own session"])
@pytest.mark.parametrize("then", ["return", "fail", "hang"])
def test_no_grandchild_outlives_the_call(children: Servers, own_session: bool, then: str) -> None:
    """torch.compile's pool of compilers, for one, would disturb the next measurement."""
    try:
        pid = call(
            children, lambda: start_sleeper(own_session=own_session, then=then), time_limit_s=1.5
        )
    except ChildFailed as failed:
        found = re.search(r"sleeper (\d+)", failed.log)
        assert found
        pid = int(found[1])
    assert gone(pid)


def test_a_helper_of_a_preloaded_package_survives_its_children(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(
        tmp_path,
        "with_helper",
        "import subprocess; helper = subprocess.Popen(['sleep', '600'])",
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = {"preload": ["with_helper"]}
    sleeper = call(forking, lambda: start_sleeper(own_session=True, then="return"), **options)
    helper = call(forking, lambda: sys.modules["with_helper"].helper.pid, **options)
    assert gone(sleeper)
    assert psutil.Process(helper).is_running()
    os.kill(helper, signal.SIGKILL)


@pytest.mark.parametrize("fork", [pytest.param(True, marks=forks), False], ids=["fork", "spawn"])
def test_an_interrupt_while_waiting_kills_the_child(tmp_path: Path, fork: bool) -> None:
    """In a process of its own: OpenVINO, where a test has used it, breaks signals in this one."""
    script = f"""
        import os, signal, time
        from pathlib import Path
        from pytest_portability.servers import Servers
        def hang():
            file = Path({str(tmp_path / "pid")!r})
            file.with_suffix(".new").write_text(str(os.getpid()))
            file.with_suffix(".new").rename(file)
            time.sleep(600)
        if __name__ == "__main__":
            # A job in the background of a shell inherits that it ignores interrupts.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with Servers(fork={fork}) as servers:
                try:
                    servers.call(hang)
                except KeyboardInterrupt:
                    print("and again", servers.call(lambda: 1))
    """
    package(tmp_path, "parent", script)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            with pytest.raises(subprocess.TimeoutExpired):  # a parent that ends here has failed
                parent.wait(timeout=0.05)
        parent.send_signal(signal.SIGINT)
        out, _ = parent.communicate(timeout=20)
    assert out == "and again 1\n"
    assert gone(int((tmp_path / "pid").read_text(encoding="ascii")))


@pytest.mark.parametrize("fork", [pytest.param(True, marks=forks), False], ids=["fork", "spawn"])
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path, fork: bool) -> None:
    script = f"""
        import os, time
        from pathlib import Path
        from pytest_portability.servers import Servers
        def hang():
            file = Path({str(tmp_path / "pids")!r})
            file.with_suffix(".new").write_text(f"{{os.getpid()}} {{os.getppid()}}")
            file.with_suffix(".new").rename(file)
            time.sleep(600)
        if __name__ == "__main__":
            Servers(fork={fork}).call(hang)
    """
    package(tmp_path, "parent", script)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], env=environment) as parent:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
            with pytest.raises(subprocess.TimeoutExpired):  # a parent that ends here has failed
                parent.wait(timeout=0.05)
        child, starter = map(int, (tmp_path / "pids").read_text(encoding="ascii").split())
        parent.kill()
    assert (starter == parent.pid) is not fork
    assert gone(child)
    assert gone(starter)


# --- files ------------------------------------------------------------------------------------


def look_around(directory: Path) -> dict[str, tuple[int, int]]:
    """Owner and mode of all that lies in a directory during a call, and of itself."""
    say("a log")
    answers.leave("an answer")
    answers.doing("looking around")
    found = [directory, *directory.rglob("*")]
    states = [(path, path.stat()) for path in found]
    return {
        str(path.relative_to(directory)): (state.st_uid, stat.S_IMODE(state.st_mode))
        for path, state in states
    }


@pytest.mark.parametrize("fork", [pytest.param(True, marks=forks), False], ids=["fork", "spawn"])
def test_what_a_call_leaves_on_the_way_is_for_its_user_only(fork: bool) -> None:
    """Models, arrays and what a test prints: whatever the umask lets others read elsewhere."""
    before = os.umask(0)
    try:
        with Servers(fork=fork) as servers:
            kept = servers.keep(np.ones(3))
            found = call(servers, look_around, servers.directory)
    finally:
        os.umask(before)
    assert {kept.name, "call-1/call", "call-1/log", "call-1/value", "call-1/step"} <= {*found}
    assert {uid for uid, _ in found.values()} == {os.getuid()}
    # Nobody else can look into it, so none of its files can be reached by another user.
    assert found["."][1] == 0o700, oct(found["."][1])


# --- output -----------------------------------------------------------------------------------


def print_everywhere() -> None:
    say("python out")
    sys.stderr.write("python err\n")
    os.write(1, b"fd 1\n")
    os.write(2, b"fd 2\n")
    ctypes.CDLL(None).printf(b"C without a newline")
    fail()


def test_what_python_and_c_write_is_captured(
    children: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChildFailed) as failed:
        call(children, print_everywhere)
    for words in ("python out", "python err", "fd 1", "fd 2", "C without a newline"):
        assert words in failed.value.log
    assert capfd.readouterr() == ("", "")


def chatter() -> None:
    os.write(1, b"x" * 10_000_000 + b"\n")
    for number in range(100):
        say(f"line {number}")
    fail()


def test_only_the_end_of_a_long_output_is_kept(children: Servers) -> None:
    with pytest.raises(ChildFailed) as failed:
        call(children, chatter)
    lines = failed.value.log.splitlines()
    assert len(lines) == answers.LOG_LINES
    assert lines[-1] == "ValueError: boom"


def one_long_line() -> NoReturn:
    sys.stdout.write("x" * 100_000 + "\n")
    boom = "boom"
    raise ValueError(boom)


def test_a_long_line_is_cut(children: Servers) -> None:
    with pytest.raises(ChildFailed) as failed:
        call(children, one_long_line)
    assert max(map(len, failed.value.log.splitlines())) == answers.LOG_COLUMNS


def double(number: int) -> int:
    return 2 * number


def test_threads_that_call_at_once_take_turns(children: Servers) -> None:
    """A test may check in a thread of its own."""
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda number: call(children, double, number), range(8))
    assert list(found) == [2 * number for number in range(8)]


# --- errors that come back --------------------------------------------------------------------


def raise_one(error: Exception) -> NoReturn:
    raise error


def test_an_error_of_ours_comes_back_as_it_is(children: Servers) -> None:
    with pytest.raises(Unsupported, match=r"^no fp16 here$"):
        call(children, raise_one, Unsupported("no fp16 here"))


class PickyError(BuildError):
    """An error that cannot be unpickled: its constructor wants more than its arguments."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")


def raise_picky() -> NoReturn:
    node, reason = "conv_1", "no such kernel"
    raise PickyError(node, reason)


class UnprintableError(Exception):
    """An error that fails when it should tell its text."""

    def __str__(self) -> str:
        raise RuntimeError


def raise_unprintable() -> NoReturn:
    raise UnprintableError


class ClingingError(BuildError):
    """An error that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.numbers = (number for number in range(3))


def raise_clinging() -> NoReturn:
    msg = "it holds a generator"
    raise ClingingError(msg)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raise_picky, "^conv_1: no such kernel$"),
        (raise_clinging, "^it holds a generator$"),
        (raise_unprintable, "UnprintableError: <"),
    ],
    ids=["unpickle", "pickle", "str"],
)
def test_an_error_that_cannot_travel_still_tells_its_text(
    children: Servers, function: Callable[[], None], text: str
) -> None:
    with pytest.raises(ChildFailed, match=text):
        call(children, function)


def test_a_value_that_cannot_travel_back_says_so(children: Servers) -> None:
    expected = r"^the result, a generator, cannot be sent back by the child: TypeError"
    with pytest.raises(ChildFailed, match=expected):
        call(children, lambda: (n for n in range(3)))


class Refusing:
    """Its pickle can be written in the child and not read in the parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return only_in, (os.getpid(),)


def only_in(pid: int) -> int:
    if pid != os.getpid():
        msg = "not my process"
        raise LookupError(msg)
    return pid


def test_a_value_that_cannot_be_read_here_says_so(children: Servers) -> None:
    expected = "the result of the child cannot be read here: LookupError: not my process"
    with pytest.raises(ChildFailed, match=expected):
        call(children, Refusing)


def test_an_argument_that_cannot_travel_says_what_to_do(children: Servers) -> None:
    expected = r"^the call cannot be sent to a child process: .*Pass a path, or a factory"
    with pytest.raises(ChildFailed, match=expected), Path("/dev/null").open("rb") as stream:
        call(children, print, stream)


def test_a_function_the_child_cannot_import_says_so(
    children: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = type(sys)("only_in_the_parent")
    exec("def f():\n    return 5", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_in_the_parent", module)
    expected = "^the call cannot be read in the child process: .*'only_in_the_parent'"
    with pytest.raises(ChildFailed, match=expected):
        children.call(module.f)


# --- memory and disk --------------------------------------------------------------------------


def exhaust() -> None:
    import resource  # noqa: PLC0415 - not on Windows

    taken = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, taken + 2**28))
    np.ones(2**28)


def test_a_child_that_runs_out_of_memory_does_not_fit(children: Servers) -> None:
    with pytest.raises(DoesNotFit, match=r"^out of memory: Unable to allocate 2\.00 GiB"):
        call(children, exhaust)


@pytest.mark.parametrize("struck", [0, 1], ids=["killed", "out of memory"])
def test_only_a_kill_that_the_kernel_counted_means_out_of_memory(
    children: Servers, monkeypatch: pytest.MonkeyPatch, struck: int
) -> None:
    counts = iter([5, 5 + struck])
    monkeypatch.setattr(servers_module, "_memory_kills", lambda: next(counts))
    with pytest.raises(DoesNotFit if struck else ChildFailed, match="SIGKILL"):
        call(children, kill_itself)


def return_more_than_fits() -> bytes:
    import resource  # noqa: PLC0415 - not on Windows

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return bytes(1_000_000)


def test_a_result_that_the_disk_has_no_room_for_says_so(children: Servers) -> None:
    expected = "^the result, a bytes, cannot be sent back by the child: OSError.*File too large"
    with pytest.raises(ChildFailed, match=expected):
        call(children, return_more_than_fits)


def test_a_directory_that_went_away_is_an_error_that_says_what_to_do(children: Servers) -> None:
    children.directory.rename(children.directory.with_name("gone"))
    expected = (
        rf"^a child process cannot be started: .*{children.directory}.*free space or set TMPDIR"
    )
    try:
        with pytest.raises(ChildFailed, match=expected):
            call(children, lambda: 1)
    finally:
        children.directory.with_name("gone").rename(children.directory)


def test_a_working_directory_that_was_deleted_is_said_to_be(
    forking: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "work").rmdir()
    with pytest.raises(ChildFailed, match=r"working directory .* no longer exists") as failed:
        call(forking, lambda: 1)
    assert "TMPDIR" not in str(failed.value)


def test_what_a_killed_run_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no directory of a living owner, of another machine, or behind a link."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Servers() as own:
        prefix = own.directory.name.partition(f"{os.getpid()}-")[0]
        with subprocess.Popen([sys.executable, "-c", ""]) as process:
            process.wait()
        dead = f"{prefix}{process.pid}-"
        kept = {f"portability-00000000-{process.pid}-x", f"portability-{process.pid}", "target"}
        for name in (f"{dead}x", *kept):
            (tmp_path / name / "call-1").mkdir(parents=True)
        (tmp_path / f"{dead}link").symlink_to(tmp_path / "target")
        with Servers() as other:
            left = {path.name for path in tmp_path.iterdir()}
            assert left == {own.directory.name, other.directory.name, f"{dead}link", *kept}
    assert (tmp_path / "target/call-1").exists()


def test_a_machine_without_a_temporary_directory_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/nowhere")
    with pytest.raises(ChildFailed, match=r"need a directory for temporary files: .*set TMPDIR"):
        Servers()


# --- the parent's __main__ --------------------------------------------------------------------

INNER = """
    import os
    from pytest_portability.servers import Servers

    def work():
        return os.getpid()

    def test_call():
        import sys
        for fork in (True, False):
            with Servers(fork=fork) as servers:
                assert servers.call(work, by_value=[sys.modules[__name__]]) != os.getpid()
"""

SCRIPT = """
    import sys
    from pathlib import Path
    import pytest

    with Path("imported").open("a") as file:
        file.write("once ")
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "test_inner.py"]))
"""


@forks
@pytest.mark.parametrize("how", ["pytest", "python -m pytest", "script"])
def test_the_main_module_of_the_parent_is_not_imported_again(tmp_path: Path, how: str) -> None:
    package(tmp_path, "test_inner", INNER)
    package(tmp_path, "start", SCRIPT)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", "utf-8")
    arguments = ["-q", "-p", "no:cacheprovider", "test_inner.py"]
    command = {
        "pytest": [str(Path(sys.executable).with_name("pytest")), *arguments],
        "python -m pytest": [sys.executable, "-m", "pytest", *arguments],
        "script": [sys.executable, "start.py"],
    }[how]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    if how == "script":
        assert (tmp_path / "imported").read_text(encoding="utf-8") == "once "
