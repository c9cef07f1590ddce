"""Runs functions in fresh child processes: fork servers, time limits, captured output.

One server per distinct environment, because preloading freezes what a library read from it. The
server is a plain ``python -c``, so the caller's ``__main__`` is never imported again. It preloads
packages and forks one child per call; a package that cannot be imported costs one restart without
it and then fails in the child that needs it, with its message. Where forking is not safe (anything
but Linux) each call spawns a new interpreter instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import cloudpickle

from pytest_portability.errors import ChildFailed, DoesNotFit, PortabilityError

CAN_FORK = sys.platform == "linux"
START_LIMIT_S = 120.0
"""Most that starting a server with its preloads may take."""

MOST_SERVERS = 4
"""A server with torch preloaded holds some 300 MB: the least recently used one is closed."""

LOG_LINES = 30

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_portability import servers; servers.{entry}(*sys.argv[2:])"
)
_PR_SET_PDEATHSIG = 1


class Servers:
    """Calls functions in fresh children; owns every process it starts.

    Args:
        fork: whether to use fork servers; default where the platform can fork safely.
    """

    def __init__(self, *, fork: bool = CAN_FORK) -> None:
        self._fork = fork
        self._servers: OrderedDict[tuple[object, ...], _Server] = OrderedDict()
        self._unusable: dict[str, str] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="portability-"))
        self._calls = 0

    @property
    def directory(self) -> Path:
        """A private directory that lives as long as this object."""
        return self._directory

    def dumps(self, value: object, by_value: Sequence[ModuleType] = ()) -> bytes:
        """Pickle a value for a child.

        Args:
            value: what to pickle.
            by_value: modules whose functions and classes travel by value.

        Raises:
            ChildFailed: it cannot be pickled.
        """
        return _dumps(value, by_value)

    def environment(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """The variables a child gets: ``defaults`` unless this process has its own."""
        return _environment(defaults)

    @property
    def unusable(self) -> Mapping[str, str]:
        """Packages that were installed but could not be preloaded → why."""
        return self._unusable

    def call(
        self,
        function: Callable[..., Any],
        *args: object,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        time_limit_s: float = 120.0,
        by_value: Sequence[ModuleType] = (),
    ) -> Any:
        """Call ``function(*args)`` in a fresh child and return its value.

        Args:
            function: what to call; it and its arguments travel by cloudpickle.
            *args: its arguments.
            environment: variables to set unless the caller's own environment has them.
            preload: packages the server imports before it forks; missing ones are left out.
            time_limit_s: the child is killed after this many seconds.
            by_value: modules whose functions and classes travel by value, because the child
                cannot import them (a test module, a conftest).

        Raises:
            PortabilityError: what the function raised, if it is one of ours.
            ChildFailed: the child raised anything else, died or hung; with its last output.
            DoesNotFit: the child ran out of memory.
        """
        self._calls += 1
        job = self._directory / f"call-{self._calls}"
        job.mkdir()
        try:
            (job / "call").write_bytes(_dumps((function, args), by_value))
            kills = _memory_kills()
            status = self._run(job, environment or {}, preload, time_limit_s)
            return _value(job, status, time_limit_s, out_of_memory=_memory_kills() > kills)
        finally:
            shutil.rmtree(job, ignore_errors=True)

    def _run(
        self, job: Path, environment: Mapping[str, str], preload: Sequence[str], limit_s: float
    ) -> int | None:
        variables = _environment(environment)
        if not self._fork:
            return _spawn(job, variables, limit_s)
        wanted = tuple(p for p in preload if p not in self._unusable)
        return self._server(variables, wanted).run(job, limit_s)

    def _server(self, variables: dict[str, str], preload: tuple[str, ...]) -> _Server:
        key = (frozenset(variables.items()), preload)
        server = self._servers.pop(key, None)
        if server is None or not server.alive:
            try:
                server = _Server(variables, preload, self._directory)
            except _PreloadError as failure:
                self._unusable[failure.package] = failure.reason
                rest = tuple(p for p in preload if p != failure.package)
                return self._server(variables, rest)
        self._servers[key] = server
        while len(self._servers) > MOST_SERVERS:
            self._servers.popitem(last=False)[1].close()
        return server

    def close(self) -> None:
        """End every server and remove what the calls left."""
        while self._servers:
            self._servers.popitem()[1].close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _PreloadError(Exception):
    def __init__(self, package: str, reason: str) -> None:
        super().__init__(package, reason)
        self.package = package
        self.reason = reason


class _Server:
    """The parent's end of one fork server."""

    def __init__(self, variables: dict[str, str], preload: Sequence[str], directory: Path) -> None:
        descriptor, log = tempfile.mkstemp(prefix="server-", suffix=".log", dir=directory)
        with os.fdopen(descriptor, "wb") as stream:
            self._process = subprocess.Popen(
                [*_python("serve"), *preload],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        self._buffer = b""
        self._await_ready(Path(log), preload)

    def _await_ready(self, log: Path, preload: Sequence[str]) -> None:
        package = "pytest_portability"
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            message = self._receive(deadline - time.monotonic())
            if message is None or "error" in message:
                self.close()
                reason = message["error"] if message else f"the import died: {_tail(log)}"
                if package in preload:
                    raise _PreloadError(package, str(reason))
                msg = f"a fork server did not start: {reason}"
                raise ChildFailed(msg, log=_tail(log))
            if "ready" in message:
                return
            package = message["importing"]

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Path, limit_s: float) -> int | None:
        """The child's wait status, None when it was killed for taking too long."""
        assert self._process.stdin is not None
        order = {"job": str(job), "cwd": str(Path.cwd()), "path": sys.path}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        started = self._receive(START_LIMIT_S)
        if started is None:
            msg = "the fork server died before it could start the child"
            raise ChildFailed(msg)
        try:
            ended = self._receive(limit_s)
        except BaseException:
            _kill_group(started["pid"])
            self.close()
            raise
        if ended is not None:
            return int(ended["status"])
        _kill_group(started["pid"])
        if self._receive(START_LIMIT_S) is None:
            self.close()
            msg = "the fork server died while the child was running"
            raise ChildFailed(msg, log=_tail(job / "log"))
        return None

    def _receive(self, limit_s: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _python(entry: str) -> list[str]:
    return [sys.executable, "-c", _BOOT.format(entry=entry), json.dumps(sys.path)]


def _environment(defaults: Mapping[str, str]) -> dict[str, str]:
    # pytest rewrites its own variables for every test: they would mean a new server for each.
    ours = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID")
    return {**defaults, **{k: v for k, v in os.environ.items() if k not in ours}}


def _dumps(call: object, by_value: Sequence[ModuleType]) -> bytes:
    registered = []
    for module in by_value:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        return bytes(cloudpickle.dumps(call))
    except Exception as exc:
        msg = (
            f"the call cannot be sent to a child process: {type(exc).__name__}: {exc}. "
            "Pass a path, or a factory (a function without arguments that makes the model)"
        )
        raise ChildFailed(msg) from exc
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _spawn(job: Path, variables: dict[str, str], limit_s: float) -> int | None:
    with (job / "log").open("wb") as log:
        process = subprocess.Popen(
            [*_python("run_job"), str(job)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit_s)
        except BaseException as exc:
            _kill_group(process.pid)
            process.wait()
            if isinstance(exc, subprocess.TimeoutExpired):
                return None
            raise
    return -code if code < 0 else code << 8


def _value(job: Path, status: int | None, limit_s: float, *, out_of_memory: bool) -> Any:
    log = _tail(job / "log")
    if status is None:
        msg = f"no answer within the time limit of {limit_s:g} s; the child was killed"
        raise ChildFailed(msg, log=log, signal_number=int(signal.SIGKILL))
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and out_of_memory:
            msg = "the kernel killed the child for want of memory (SIGKILL)"
            raise DoesNotFit(msg)
        msg = f"the child was killed by {signal.Signals(number).name}"
        raise ChildFailed(msg, log=log, signal_number=number)
    try:
        outcome, value = pickle.loads((job / "value").read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError) as exc:
        msg = f"the child ended with exit code {os.WEXITSTATUS(status)} and no result"
        raise ChildFailed(msg, log=log) from exc
    if outcome == "value":
        return value
    if isinstance(value, ChildFailed):
        value.log = log
    raise value


def _memory_kills() -> int:
    """How often the kernel's out-of-memory killer struck on this machine, 0 where unknown."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    pairs = (line.split() for line in counters.splitlines())
    return sum(int(count) for name, count in pairs if name == "oom_kill")


def _tail(log: Path) -> str:
    try:
        text = log.read_bytes()[-65536:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-LOG_LINES:])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# --- in the server ---------------------------------------------------------------------------


def serve(*preload: str) -> None:
    """Preload packages, then fork one child for each order read from standard input."""
    # A preloaded library may print: only this copy of standard output carries the protocol.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for package in preload:
        _answer(answers, {"importing": package})
        try:
            __import__(package)
        except Exception as exc:  # noqa: BLE001 - whatever an import raises is its message
            _answer(answers, {"error": f"{type(exc).__name__}: {exc}"})
            return
    _answer(answers, {"ready": True})
    while line := _read_line(0):
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become_child(order)
        _answer(answers, {"pid": pid})
        status = _wait(pid)
        if status is None:
            return
        _answer(answers, {"status": status})


def _answer(stream: Any, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _read_line(descriptor: int) -> bytes:
    # Byte by byte: a buffered reader would hide an end of file from ``select`` in ``_wait``.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            return b""
        line += byte
    return line


def _wait(pid: int) -> int | None:
    """Wait for the child; if the parent went away meanwhile, kill it and answer None."""
    try:
        sentinel = os.pidfd_open(pid)
    except (AttributeError, OSError):
        _, status = os.waitpid(pid, 0)
    else:
        ready, _, _ = select.select([sentinel, 0], [], [])
        os.close(sentinel)
        orphaned = 0 in ready and sentinel not in ready
        if orphaned:
            _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        if orphaned:
            return None
    _kill_group(pid)  # helpers that a compiler left behind
    return status


def _become_child(order: dict[str, Any]) -> NoReturn:
    job = Path(order["job"])
    with contextlib.suppress(BaseException):
        os.setsid()
        _die_with_parent()
        descriptor = os.open(job / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["cwd"])
        sys.path[:] = order["path"]
        run_job(str(job))
    os._exit(1)


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Under memory pressure the kernel should take this process, not the user's pytest.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def run_job(directory: str) -> NoReturn:
    """Do one call in this process, leave its outcome in ``directory`` and exit."""
    faulthandler.enable()  # a segfault leaves its stack in the log
    job = Path(directory)
    outcome: tuple[str, object]
    try:
        function, args = pickle.loads((job / "call").read_bytes())
        outcome = ("value", function(*args))
    except PortabilityError as exc:
        outcome = ("error", exc)
    except MemoryError as exc:
        outcome = ("error", DoesNotFit(f"out of memory: {exc}"))
    except BaseException as exc:  # noqa: BLE001 - the parent decides what it means
        traceback.print_exc()
        outcome = ("error", ChildFailed(f"{type(exc).__name__}: {exc}"))
    (job / "value").write_bytes(cloudpickle.dumps(outcome))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not ``sys.exit``: native libraries have been seen to abort while they are torn down.
    os._exit(0)
