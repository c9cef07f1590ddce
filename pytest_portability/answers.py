"""What the child of one call leaves in its directory, and what its caller makes of that."""

from __future__ import annotations

import contextlib
import pickle
import signal
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from pytest_portability.errors import ChildFailed, DoesNotFit, PortabilityError, error_text

LOG_LINES = 30
LOG_COLUMNS = 500
LOG_BYTES = 1 << 16


# --- in the child ----------------------------------------------------------------------------

# Of the one call that this process does; empty in any other process, where nobody waits for it.
_here: list[Path] = []


def give(job: Path) -> None:
    """Do the call that waits in ``job``, and leave its value or its error there."""
    _here[:] = [job]
    error = _attempt(job)
    if error is not None:
        _put(job / "error", (str(error), _pickled(error)))


def doing(step: str) -> None:
    """Say what comes next, such as ``building it``, in case this process does not survive it."""
    for job in _here:
        with contextlib.suppress(OSError):  # no measurement fails for want of this
            (job / "step").write_text(step, encoding="utf-8")


def leave(value: object) -> None:
    """Leave a value that stands if this process does not live to return another."""
    for job in _here:
        _put(job / "value", value)


def _put(file: Path, value: object) -> None:
    """Write it whole or not at all: this process may be killed at any time."""
    part = file.with_suffix(".part")
    with part.open("wb") as stream:
        cloudpickle.dump(value, stream)
    part.replace(file)


def _attempt(job: Path) -> PortabilityError | None:
    problem = "the call cannot be read in the child process: "
    try:
        function, args = pickle.loads((job / "call").read_bytes())
        problem = ""
        value = function(*args)
        problem = f"the result, a {type(value).__name__}, cannot be sent back by the child: "
        leave(value)
    except PortabilityError as exc:
        return exc
    except MemoryError as exc:
        return DoesNotFit(f"out of memory: {exc}".rstrip(": "))
    except BaseException as exc:  # noqa: BLE001 - the parent decides what it means
        traceback.print_exc()
        return ChildFailed(problem + error_text(exc))
    return None


def _pickled(error: PortabilityError) -> bytes:
    try:
        return bytes(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 - a class of the user's may refuse in any way; the text is safe
        return b""


# --- in the caller ---------------------------------------------------------------------------


def take(job: Path, code: int | None, limit_s: float, *, out_of_memory: bool) -> tuple[Any, str]:
    """What the child left: a value is returned, an error raised.

    Args:
        job: its directory.
        code: its exit code, minus the signal if one killed it; None if it took too long.
        limit_s: how long it was given.
        out_of_memory: whether the kernel killed a process for want of memory meanwhile.

    Returns:
        The value; and how the child ended, if it left the value before its end.

    Raises:
        PortabilityError: what the function raised, if it is one of ours.
        ChildFailed: it raised anything else, died or hung; with its last output.
        DoesNotFit: it ran out of memory.
    """
    log = tail(job / "log")
    if (job / "error").exists():
        raise _error(job, log)
    left = (job / "value").exists()
    if code == 0 and left:
        return _value(job, log), ""
    death = _death(job, code, limit_s, log, out_of_memory=out_of_memory)
    if not left:
        raise death
    return _value(job, log), str(death)


def _value(job: Path, log: str) -> Any:
    try:
        with (job / "value").open("rb") as stream:
            return pickle.load(stream)
    except Exception as exc:
        msg = f"the result of the child cannot be read here: {error_text(exc)}"
        raise ChildFailed(msg, log=log) from exc


def _death(
    job: Path, code: int | None, limit_s: float, log: str, *, out_of_memory: bool
) -> PortabilityError:
    step = _step(job)
    if code is None:
        msg = (
            f"no answer within the time limit of {limit_s:g} s{step}; the child was killed (the "
            "ini key portability_time_limit sets another limit)"
        )
        return ChildFailed(msg, log=log, signal_number=getattr(signal, "SIGKILL", None))
    if code >= 0:
        return ChildFailed(f"the child {ended(code)} and no result{step}", log=log)
    if ended(code) == "was killed by SIGKILL" and out_of_memory:
        return DoesNotFit(f"the kernel killed the child for want of memory (SIGKILL){step}")
    return ChildFailed(f"the child {ended(code)}{step}", log=log, signal_number=-code)


def _step(job: Path) -> str:
    try:
        return f" while {(job / 'step').read_text(encoding='utf-8')}"
    except (OSError, ValueError):
        return ""


def _error(job: Path, log: str) -> PortabilityError:
    text = "its error cannot be read here"
    try:
        text, data = pickle.loads((job / "error").read_bytes())
        error = pickle.loads(data)
    except Exception:  # noqa: BLE001 - a class of the user's may refuse in any way; the text is safe
        error = None
    if not isinstance(error, PortabilityError):
        return ChildFailed(text, log=log)
    error.log = log
    return error


def ended(code: int) -> str:
    """How a process ended, such as ``was killed by SIGSEGV``."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def tail(log: Path) -> str:
    """The last lines of a log, bounded; empty if there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_BYTES))
            text = stream.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line[:LOG_COLUMNS] for line in text.strip().splitlines()[-LOG_LINES:])
