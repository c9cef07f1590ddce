"""The other end of ``servers``: what runs in a fork server and in the child of one call."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import select
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import psutil

from pytest_portability import answers
from pytest_portability.errors import error_text

START_LIMIT_S = 120.0
"""Most that starting a server with its preloads may take."""

_FIRST = ("json", "random", "secrets", "statistics", "numpy.random")
"""What is imported before the caller's path holds, in which a file may have such a name."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def kill_group(pid: int) -> None:
    """Kill what is left of the process group a child was the leader of."""
    with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
        os.killpg(pid, signal.SIGKILL)  # Windows has neither


def kill_tree(pid: int) -> None:
    """Kill a process that nobody has waited for yet, its group and its descendants."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]  # before the kill: orphans change parents
    kill_group(pid)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()


# --- in the server ---------------------------------------------------------------------------


def serve(*preload: str) -> NoReturn:
    """Preload packages, then fork one child for each order read from standard input."""
    # A preloaded library may print: only this copy of standard output carries the protocol.
    answers = os.dup(1)
    os.dup2(2, 1)
    faulthandler.enable()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a child leaves behind becomes ours to kill
    signal.alarm(int(START_LIMIT_S))  # should an import hang, and the parent be gone
    for package in preload:
        _answer(answers, {"importing": package})
        if reason := _import(package):
            _answer(answers, {"error": reason})
            os._exit(1)
    for package in _FIRST:
        _import(package)
    signal.alarm(0)
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    helpers = frozenset(psutil.Process().children(recursive=True))
    _answer(answers, {"ready": True})
    while line := _read_line():
        _flush()  # or every child would print what an import has printed
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            _become_child(json.loads(line))
        _answer(answers, {"pid": pid})
        code = _wait(pid, helpers)
        if code is None:
            break
        _answer(answers, {"code": code})
    os._exit(0)


def _import(package: str) -> str:
    """Why the package cannot be imported, empty if it can or is not installed.

    ``module:function`` is imported and called.
    """
    name, _, function = package.partition(":")
    try:
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    except ModuleNotFoundError as exc:
        if exc.name is not None and f"{name}.".startswith(f"{exc.name}."):
            return ""
        return error_text(exc)
    except BaseException as exc:  # noqa: BLE001 - whatever an import raises is its message
        return error_text(exc)
    return ""


def _answer(descriptor: int, message: dict[str, object]) -> None:
    os.write(descriptor, json.dumps(message).encode() + b"\n")


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)  # unbuffered, or ``_wait`` could not see the end of the file
        if not chunk:
            return b""
        line += chunk
    return line


def _wait(pid: int, helpers: frozenset[psutil.Process]) -> int | None:
    """The child's exit code; None if the parent went away meanwhile, and the child is killed."""
    orphaned = False
    # Without ``pidfd_open`` (Linux before 5.3) a child that hangs outlives a killed parent.
    with contextlib.suppress(AttributeError, OSError):
        sentinel = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(sentinel, select.POLLIN)
        poller.register(0, select.POLLIN)
        orphaned = sentinel not in dict(poller.poll())
        os.close(sentinel)
    if orphaned:
        kill_tree(pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kill_group(pid)
    _sweep(helpers)
    return None if orphaned else code


def _sweep(helpers: frozenset[psutil.Process]) -> None:
    """Kill what the child started in a session of its own, such as a pool of compilers."""
    while True:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # no child at all: by far the most frequent case, and cheap
            return
        left = [p for p in psutil.Process().children(recursive=True) if p not in helpers]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)


def _become_child(order: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        _be_expendable()
        log = os.open(Path(order["job"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["cwd"])
        sys.path[:] = order["path"]
        run_job(order["job"])
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of the server may run in the child
        traceback.print_exc()
    # Not ``sys.exit``: native libraries have been seen to abort while they are torn down.
    os._exit(code)


# --- in the child ----------------------------------------------------------------------------


def run_spawned(directory: str, path: str) -> NoReturn:
    """``run_job`` as the whole life of a new interpreter; it ends with the caller's own path."""
    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_die_at_end_of, args=(parent,), daemon=True).start()
    _be_expendable()
    for package in _FIRST:
        _import(package)
    sys.path[:] = path.split("\n")
    run_job(directory)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(0)


def _die_at_end_of(descriptor: int) -> None:
    """Read from a pipe that the parent never writes to and the kernel closes when it dies."""
    while os.read(descriptor, 1):
        pass
    kill_tree(os.getpid())


def _be_expendable() -> None:
    """Die with the process that started this one, and before it where memory runs out."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if hasattr(signal, "SIGKILL") else 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # Linux only
        ctypes.CDLL(None).prctl(option, value)


def run_job(directory: str) -> None:
    """Do one call in this process and leave its value or its error in ``directory``."""
    faulthandler.enable()  # a segfault leaves its stack in the log
    importlib.invalidate_caches()  # the server may have listed a folder before it was filled
    _print_at_once()
    answers.give(Path(directory))
    _flush()


def _print_at_once() -> None:
    """Let each line reach the log when it is printed: a crash must not take the last words."""
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # None has no such
        libc = ctypes.CDLL(None)
        stream = ctypes.c_void_p.in_dll(libc, "stdout")
        libc.setvbuf(stream, None, 1, ctypes.c_size_t(0))  # 1 is _IOLBF in every C library


def _flush() -> None:
    """Empty Python's and C's buffers of what was printed."""
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
