"""The workers of pytest-xdist, seen from the controller: other machines maybe, and mortal."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from pytest_portability.errors import error_text

MOST_LOST = 3
"""Items of a lost worker that are named."""

ANSWER_S = 60.0


def is_elsewhere(spec: str) -> bool:
    """Whether a worker's ``--tx`` names a machine that keeps its own checkout."""
    return any(part.startswith(("ssh=", "socket=", "vagrant_ssh=")) for part in spec.split("//"))


def keep_going(config: pytest.Config) -> None:
    """Have the other machines of a fleet finish when one goes away, unless the user says else.

    xdist starts a worker that died once more. Where its machine is gone that ends the whole run.
    """
    given = config.getoption("tx", default=None) or ()
    if any(map(is_elsewhere, given)) and config.getoption("maxworkerrestart", None) is None:
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


def _shown(spec: Any) -> str:
    """A worker's ``--tx`` as the user gave it."""
    return "//".join(p for p in str(spec).split("//") if not p.startswith("execmodel="))


class Fleet:
    """Hooks of the controller.

    Args:
        version: of this plugin.
        dist: xdist's distribution mode.
    """

    def __init__(self, version: str, dist: str) -> None:
        self._version = version
        self._each = dist == "each"
        self._specs: dict[str, str] = {}  # worker → its --tx
        self._replaces: dict[str, str] = {}  # worker → the dead one it was started for
        self._collected: dict[str, Sequence[str]] = {}
        self._begun: dict[str, set[str]] = {}
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
        chain = [worker]
        while old := self._replaces.get(chain[-1], ""):
            chain.append(old)
        found = [who for who in chain if nodeid in self._begun.get(who, ())]
        self._begun.setdefault(worker, set()).add(nodeid)
        return found

    @property
    def problems(self) -> list[str]:
        """What workers that died did not do, a line each."""
        return [text for worker, why in self._dead.items() if (text := self._lost(worker, why))]

    def _lost(self, worker: str, why: str) -> str:
        where = f"worker {worker} (--tx {self._specs.get(worker, '?')}) went away ({why})"
        if worker not in self._collected:
            return f"{where} before it had collected its tests: what it has to say is above"
        mine = (worker, *(new for new, old in self._replaces.items() if old == worker))
        who = mine if self._each else tuple(self._begun)
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
            who = next(reversed(self._specs.values()), "")
            after = f"after {who}: " if who else ""
            msg = (
                f"xdist could not start a worker of --tx ({after}{error_text(exc)}). Of an ssh= "
                "machine it needs `ssh HOST PYTHON -V` to work without a password, with the "
                "PYTHON of python=, and the folder above that of chdir="
            )
            raise pytest.UsageError(msg) from exc

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Refuse a worker of another environment: xdist gives it the paths of this one."""
        spec, worker = node.gateway.spec, node.gateway.id
        self._specs[worker] = _shown(spec)
        waiting = (old for old in self._dead if old not in self._replaces.values())
        same = (old for old in waiting if self._specs[old] == _shown(spec))
        if old := next(same, ""):
            self._replaces[worker] = old
        node.workerinput["portability"] = self._version
        if spec.popen and (spec.python or spec.via):
            channel = node.gateway.remote_exec("import sys; channel.send(sys.prefix)")
            prefix = channel.receive(ANSWER_S)
            channel.waitclose(ANSWER_S)
            if os.path.realpath(prefix) != os.path.realpath(sys.prefix):
                raise pytest.UsageError(_other_environment(_shown(spec), prefix))

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
