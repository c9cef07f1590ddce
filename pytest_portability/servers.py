"""Runs functions in fresh child processes: fork servers, time limits, captured output.

One server per distinct environment, because preloading freezes what a library read from it. The
server is a plain ``python -c``, so the caller's ``__main__`` is never imported again. It preloads
packages and forks one child per call; a package that cannot be imported costs one restart without
it and then fails in the child that needs it, with its message. Where forking is not safe (anything
but Linux) each call spawns a new interpreter instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import psutil

from pytest_portability import answers
from pytest_portability.answers import ended, tail
from pytest_portability.children import START_LIMIT_S, kill_group, kill_tree
from pytest_portability.errors import ChildFailed

CAN_FORK = sys.platform == "linux"
MOST_SERVERS = 4
"""A server with torch preloaded holds some 300 MB: the least recently used one is closed."""

# Only ``sys`` before the path is set: whatever else is imported could be a file of the caller's
# working directory that has the name of a standard module.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split('\\n'); "
    "from pytest_portability import children; children.{entry}(*sys.argv[2:])"
)


class Servers:
    """Calls functions in fresh children; owns every process it starts.

    Args:
        fork: whether to use fork servers; default where the platform can fork safely.

    Raises:
        ChildFailed: there is no directory for temporary files.
    """

    def __init__(self, *, fork: bool = CAN_FORK) -> None:
        self._fork = fork
        self._servers: OrderedDict[tuple[object, ...], _Server] = OrderedDict()
        self._unusable: dict[str, str] = {}
        self._calls = 0
        self._turn = threading.Lock()  # a server answers one call at a time
        self._log = ""
        self._unfinished = ""
        try:
            _sweep(Path(tempfile.gettempdir()))
            self._directory = Path(tempfile.mkdtemp(prefix=f"{_ours()}{os.getpid()}-"))
        except OSError as exc:
            msg = f"child processes need a directory for temporary files: {exc}; set TMPDIR"
            raise ChildFailed(msg) from exc

    @property
    def log(self) -> str:
        """The last lines that the latest child wrote."""
        return self._log

    @property
    def unfinished(self) -> str:
        """How the latest child ended, if the value is what it had left by then; else empty."""
        return self._unfinished

    @property
    def directory(self) -> Path:
        """A private directory that lives as long as this object."""
        return self._directory

    def keep(self, value: object, by_value: Sequence[ModuleType] = ()) -> Path:
        """Pickle a value into a file that children may read; equal pickles share one.

        Args:
            value: what to pickle.
            by_value: modules whose functions and classes travel by value.

        Raises:
            ChildFailed: it cannot be pickled, or the file cannot be written.
        """
        data = _dumps(value, by_value)
        path = self._directory / f"{hashlib.sha256(data).hexdigest()[:24]}.pickle"
        try:
            if not path.exists():
                path.write_bytes(data)
        except OSError as exc:
            raise ChildFailed(self._no_room(exc)) from exc
        return path

    def _no_room(self, exc: OSError) -> str:
        try:
            Path.cwd()
        except OSError:
            return (
                "a child process cannot be started: the working directory of this process no "
                "longer exists; a test or fixture has removed it and must change to another first"
            )
        return (
            f"a child process cannot be started: {exc}. Its files go to {self._directory}: if "
            "that is full or gone, free space or set TMPDIR to another directory"
        )

    def environment(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """The variables a child gets: ``defaults`` unless this process has its own."""
        return _environment(defaults)

    @property
    def unusable(self) -> Mapping[str, str]:
        """Packages that are installed but could not be preloaded → why."""
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
        call = _dumps((function, args), by_value)
        with self._turn:
            return self._called(call, environment or {}, preload, time_limit_s)

    def _called(
        self, call: bytes, environment: Mapping[str, str], preload: Sequence[str], limit_s: float
    ) -> Any:
        self._calls += 1
        self._unfinished = ""
        job = self._directory / f"call-{self._calls}"
        try:
            job.mkdir()
            (job / "call").write_bytes(call)
            Path.cwd()  # where it is gone, an interpreter that starts there says so in many ways
            kills = _memory_kills()
            code = self._run(job, environment, preload, limit_s)
            starved = _memory_kills() > kills
            value, self._unfinished = answers.take(job, code, limit_s, out_of_memory=starved)
        except OSError as exc:
            raise ChildFailed(self._no_room(exc)) from exc
        finally:
            self._log = tail(job / "log")
            shutil.rmtree(job, ignore_errors=True)
        return value

    def _run(
        self, job: Path, environment: Mapping[str, str], preload: Sequence[str], limit_s: float
    ) -> int | None:
        variables = _environment(environment)
        if not self._fork:
            return _spawn(job, variables, limit_s)
        return self._server(variables, preload).run(job, limit_s)

    def _server(self, variables: dict[str, str], preload: Sequence[str]) -> _Server:
        wanted = tuple(p for p in preload if p not in self._unusable)
        key = (frozenset(variables.items()), wanted)
        server = self._servers.pop(key, None)
        if server is not None and not server.alive:
            server.close()
            server = None
        if server is None:
            try:
                server = _Server(variables, wanted, self._directory)
            except _PreloadError as failure:
                self._unusable[failure.package] = failure.reason
                return self._server(variables, wanted)
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
        self._log = Path(log)
        self._buffer = b""
        with os.fdopen(descriptor, "wb") as stream:
            self._process = subprocess.Popen(
                [*_python("serve"), *preload],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def _await_ready(self) -> None:
        package = ""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            message = self._receive(deadline - time.monotonic())
            if message is not None and "ready" in message:
                return
            if message is not None and "importing" in message:
                package = message["importing"]
                continue
            reason = message["error"] if message else self._last_words()
            if package:
                raise _PreloadError(package, reason)
            msg = f"a fork server did not start: {reason}"
            raise ChildFailed(msg, log=tail(self._log))

    def _last_words(self) -> str:
        try:
            how = ended(self._process.wait(timeout=1))
        except subprocess.TimeoutExpired:
            how = f"took longer than {START_LIMIT_S:g} s"
        return f"the process {how}\n{tail(self._log)}".strip()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: Path, limit_s: float) -> int | None:
        """The child's exit code, minus the signal if one killed it; None if it took too long."""
        assert self._process.stdin is not None
        order = {"job": str(job), "cwd": str(Path.cwd()), "path": _import_path()}
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            pid = self._expect("pid", job)
            ended = self._receive(limit_s)
            if ended is not None:
                return int(ended["code"])
            kill_tree(pid)
            self._expect("code", job)
        except BaseException:
            self.kill()  # it may be anywhere in the protocol
            raise
        return None

    def _expect(self, what: str, job: Path) -> int:
        message = self._receive(START_LIMIT_S)
        if message is None:
            msg = "the fork server that should run the child died"
            raise ChildFailed(msg, log=tail(job / "log") or tail(self._log))
        return int(message[what])

    def _receive(self, limit_s: float) -> dict[str, Any] | None:
        """The next message, None at the end of the file or of the time."""
        assert self._process.stdout is not None
        # Not ``select.select``, which refuses descriptors above 1023.
        poller = select.poll()
        poller.register(self._process.stdout, select.POLLIN)
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not poller.poll(left * 1000):
                return None
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Let the server end by itself, which it does at the end of its standard input."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            kill_tree(self._process.pid)
            self._process.wait()

    def kill(self) -> None:
        """End the server and its child at once."""
        if self.alive:
            kill_tree(self._process.pid)
        self.close()


def _ours() -> str:
    """How the names of the directories begin whose owners are processes that we can see.

    A directory for temporary files may be shared by machines and containers.
    """
    seen_from = socket.gethostname()
    with contextlib.suppress(OSError):
        seen_from += str(Path("/proc/self/ns/pid").readlink())
    return f"portability-{hashlib.sha256(seen_from.encode()).hexdigest()[:8]}-"


def _sweep(folder: Path) -> None:
    """Remove what this user's processes left there that were killed before they could."""
    prefix, me = _ours(), getattr(os, "getuid", lambda: None)()
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            pid, dash, _ = entry.name.removeprefix(prefix).partition("-")
            if not (entry.name.startswith(prefix) and dash and pid.isdecimal()):
                continue
            with contextlib.suppress(OSError, OverflowError):
                own = me is None or entry.stat(follow_symlinks=False).st_uid == me
                if own and entry.is_dir(follow_symlinks=False) and not psutil.pid_exists(int(pid)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _python(entry: str) -> list[str]:
    """The command of a new interpreter, which looks for standard modules before any other.

    A test's directory may have a ``random.py``: it hurts nobody in this process, where what it
    hides is imported long before pytest puts the directory first.
    """
    standard = sysconfig.get_path("stdlib")
    first = [p for p in _import_path() if p in {standard, str(Path(standard, "lib-dynload"))}]
    path = [*first, *(p for p in _import_path() if p not in first)]
    return [sys.executable, "-c", _BOOT.format(entry=entry), "\n".join(path)]


def _import_path() -> list[str]:
    entries: list[object] = [*sys.path]
    return [entry for entry in entries if isinstance(entry, str)]  # import skips any other


def _environment(defaults: Mapping[str, str]) -> dict[str, str]:
    # pytest rewrites its own variables for every test: they would mean a new server for each.
    ours = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID")
    return {**defaults, **{k: v for k, v in os.environ.items() if k not in ours}}


def _dumps(value: object, by_value: Sequence[ModuleType]) -> bytes:
    # What is not in ``sys.modules`` under its name travels by value anyway, and may not register.
    registered = [
        module
        for module in dict.fromkeys(by_value)
        if sys.modules.get(module.__name__) is module
        and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    ]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
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
            [*_python("run_spawned"), str(job), "\n".join(_import_path())],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
        kill_group(process.pid)
        process.wait()
        process.stdin.close()


def _memory_kills() -> int:
    """How often the kernel's out-of-memory killer struck on this machine, 0 where unknown."""
    try:
        counters = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    pairs = (line.split() for line in counters.splitlines())
    return sum(int(count) for name, count in pairs if name == "oom_kill")
