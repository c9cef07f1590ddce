"""The workers of pytest-xdist, seen from the controller: other machines maybe, and mortal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from pytest_portability.errors import error_text

MOST_LOST = 3
"""Items of a lost worker that are named."""

ANSWER_S = 60.0


def is_elsewhere(spec: str) -> bool:
    """Whether ``--tx``, of one worker or as given, is a machine that keeps its own checkout."""
    return bool(re.search(r"(^|//)(\d+\*)?(ssh|socket|vagrant_ssh)=", spec))


def keep_going(config: pytest.Config) -> None:
    """Have the other machines of a fleet finish when one goes away, unless the user says else.

    xdist starts a worker that died once more. Where its machine is gone that ends the whole run.
    """
    given = config.getoption("tx", default=None) or ()
    fleet = config.getoption("dist", default="no") == "each" and any(map(is_elsewhere, given))
    if fleet and config.getoption("maxworkerrestart", None) is None:
        config.option.maxworkerrestart = "0"


def refuse_other_version(config: pytest.Config, version: str) -> None:
    """End a worker whose results the controller could not read.

    Raises:
        UsageError: the controller has another version of this plugin.
    """
    theirs = getattr(config, "workerinput", {}).get("portability", version)
    if theirs != version:
        msg = (
            f"pytest-portability {version} is installed for this worker ({sys.executable}), and "
            f"{theirs} for the controller: install {theirs} here, too"
        )
        raise pytest.UsageError(msg)


def _given(spec: Any) -> str:
    """A worker's ``--tx`` as the user gave it."""
    return "//".join(p for p in str(spec).split("//") if not p.startswith("execmodel="))


def _place(spec: str) -> str:
    """The part of it that says where the worker is, such as ``ssh=h200-box``."""
    kinds = ("popen", "ssh=", "socket=", "vagrant_ssh=")
    return next((part for part in spec.split("//") if part.startswith(kinds)), spec)


class Fleet:
    """Hooks of the controller.

    Args:
        version: of this plugin.
        dist: xdist's distribution mode.
    """

    def __init__(self, version: str, dist: str) -> None:
        self._version = version
        self._each = dist == "each"
        self.narrowed: set[str] = set()  # workers that left tests of ours out
        self._waiting: list[str] = []  # the --tx of each worker that is not yet started, in order
        self._specs: dict[str, str] = {}  # worker → its --tx
        self._replaces: dict[str, str] = {}  # worker → the dead one it was started for
        self._collected: dict[str, Sequence[str]] = {}  # worker → its tests
        self._begun: dict[str, set[str]] = {}  # worker → the tests it began
        self._dead: dict[str, str] = {}  # worker → why

    # -- what the other hooks of a run ask

    def is_elsewhere(self, worker: str) -> bool:
        """Whether a worker has a checkout, and so records, of its own."""
        return is_elsewhere(self._specs.get(worker, ""))

    def begins(self, nodeid: str, worker: str) -> list[str]:
        """Note that an item begins.

        Returns:
            The workers that began it before: this one, as a plugin runs it again, or one that died
            and that this one replaces.
        """
        found = [who for who in self._chain(worker) if nodeid in self._begun.get(who, ())]
        self._begun.setdefault(worker, set()).add(nodeid)
        return found

    def _chain(self, worker: str) -> list[str]:
        """A worker, the dead one it was started for, and so on to the first."""
        chain = [worker]
        while old := self._replaces.get(chain[-1], ""):
            chain.append(old)
        return chain

    @property
    def problems(self) -> list[str]:
        """What workers that died did not do, a line each."""
        lost = [text for worker, why in self._dead.items() if (text := self._lost(worker, why))]
        empty = [w for w, ids in self._collected.items() if not ids and self.is_elsewhere(w)]
        return lost + [
            f"worker {worker} ({_place(self._specs[worker])}) found no test: is its chdir= the "
            "checkout, with the tests where pytest looks without a path?"
            for worker in empty
            if worker not in self.narrowed
        ]

    def _lost(self, worker: str, why: str) -> str:
        where = f"worker {worker} ({_place(self._specs.get(worker, '?'))}) went away ({why})"
        if worker not in self._collected:
            return f"{where} before it had collected its tests: what it has to say is above"
        first = self._chain(worker)[-1]
        who = [w for w in self._begun if not self._each or self._chain(w)[-1] == first]
        begun = set().union(*(self._begun.get(one, ()) for one in who))
        lost = [nodeid for nodeid in self._collected[worker] if nodeid not in begun]
        if not lost:
            return ""  # the item it ran is in the report
        more = f" and {len(lost) - MOST_LOST} more" if len(lost) > MOST_LOST else ""
        return f"{where}: never run: {', '.join(lost[:MOST_LOST])}{more}"

    # -- hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None, object, object]:
        """Say what a machine has to have where a worker cannot be started."""
        import execnet  # noqa: PLC0415 - only where xdist is

        try:
            return (yield)
        except (execnet.HostNotFound, execnet.RemoteError, EOFError, OSError) as exc:
            if not self._waiting:
                raise  # another plugin's or a conftest's
            which, why = self._waiting[0], error_text(exc).rpartition("\n")[2]
            msg = (
                f"xdist could not start the worker --tx {which} ({why}). At an ssh= machine it "
                "needs `ssh HOST PYTHON -V` to work without a password, with the PYTHON of "
                "python=, and the folder above that of chdir="
            )
            raise pytest.UsageError(msg) from exc
        except ValueError as exc:
            if "not relative to an rsync root" not in str(exc):
                raise
            msg = (
                f"{exc}: a path on the command line means nothing to a machine that has a checkout "
                "of its own. Leave it out, and choose tests by -m, -k or testpaths in the ini file"
            )
            raise pytest.UsageError(msg) from exc

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Learn which workers are to be."""
        self._waiting = [_given(spec) for spec in specs]

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Refuse a worker of another environment: xdist gives it the paths of this one."""
        spec, worker = node.gateway.spec, node.gateway.id
        self._specs[worker] = _given(spec)
        waiting = (old for old in self._dead if old not in self._replaces.values())
        same = (old for old in waiting if self._specs[old] == _given(spec))
        if old := next(same, ""):
            self._replaces[worker] = old
        node.workerinput["portability"] = self._version
        if spec.popen and (spec.python or spec.via):
            channel = node.gateway.remote_exec("import sys; channel.send(sys.prefix)")
            prefix = channel.receive(ANSWER_S)
            channel.waitclose(ANSWER_S)
            if os.path.realpath(prefix) != os.path.realpath(sys.prefix):
                raise pytest.UsageError(_other_environment(_given(spec), prefix))
        self._waiting = self._waiting[1:]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Learn what a worker has to do."""
        self._collected[node.gateway.id] = ids

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Learn that a worker died."""
        if error:
            self._dead[node.gateway.id] = str(error).strip().rpartition("\n")[2]


def _other_environment(spec: str, prefix: str) -> str:
    return (
        f"--tx {spec} is of another environment ({prefix}), and xdist gives its workers the paths "
        "of this one: this one's runtimes would be measured again. Record here with "
        "--update-baselines, and run pytest there with --portability-against=DIR; or reach it by "
        "--tx ssh=…//python=…//chdir=…, whose workers have their own paths"
    )
