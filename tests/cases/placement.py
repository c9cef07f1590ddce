"""Runtimes that do not do what was asked, or not when they say; good and bad by ``CASE_BUILD``."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Graph, normal
from runtimes.fake import FakeBuild, FakeRuntime

from pytest_portability.models import Arrays
from pytest_portability.runtimes import Request

TURN_S = 0.001
STEADY_S = 1.3
"""The fading runtime keeps its speed so long; a measurement of two seconds sees both."""

EVERYTHING = ("MatMul", "Tanh", "Identity")


def network() -> Any:
    """Two products with an activation each."""
    g = Graph()
    x = g.input("x", [16, 128])
    for _ in range(2):
        x = g.node("Tanh", g.node("MatMul", x, g.drawn(128, 128)))
    g.output(x)
    return g.model()


def chain(*, products: int) -> Any:
    """So many products with the unit matrix: the same results, however many there are."""
    g = Graph()
    x = g.input("x", [32, 192])
    unit = g.weight(np.eye(192, dtype=np.float32))
    for _ in range(products):
        x = g.node("MatMul", x, unit)
    g.output(x)
    return g.model()


class CarelessBuild(FakeBuild):
    """Enqueues to a thread; whether ``synchronize`` waits for it is for its runtime to say."""

    def __init__(self, runtime: Careless, request: Request) -> None:
        super().__init__(runtime, request)
        self._waits = runtime.waits
        self._queue = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def launch(self) -> None:
        self._last = self._queue.submit(self._work)

    def _work(self) -> None:
        self._pending = 1
        super().synchronize()

    def synchronize(self) -> None:
        if self._waits:
            self._wait()

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def fetch(self) -> Arrays:
        self._wait()
        self._pending = 0
        return super().fetch()


@dataclass(kw_only=True)
class Careless(FakeRuntime):
    """Builds whose clock may stop before the work is done."""

    waits: bool = True

    def build(self, request: Request) -> FakeBuild:
        return CarelessBuild(self, request)


class FadingBuild(FakeBuild):
    """Takes three times as long from some moment on, as a processor does that became too hot."""

    def __init__(self, runtime: Fading, request: Request) -> None:
        super().__init__(runtime, request)
        self._fades = runtime.fades
        self._first = 0.0

    def launch(self) -> None:
        self._first = self._first or time.monotonic()
        hot = self._fades and time.monotonic() - self._first > STEADY_S
        time.sleep(3 * TURN_S if hot else TURN_S)
        super().launch()


@dataclass(kw_only=True)
class Fading(FakeRuntime):
    """Builds that may get slower while they are measured."""

    fades: bool = False

    def build(self, request: Request) -> FakeBuild:
        return FadingBuild(self, request)


def pytest_portability_runtimes(config: Any) -> list[FakeRuntime]:
    """Runtimes that misbehave in the second run; for the project's conftest."""
    del config
    bad = os.environ["CASE_BUILD"] == "bad"
    return [
        Careless(name="careless", waits=not bad),
        Fading(name="fading", fades=bad),
        FakeRuntime(name="elsewhere", falls_back=EVERYTHING if bad else ()),
        FakeRuntime(name="partly", falls_back=("Tanh",) if bad else ()),
        FakeRuntime(name="costly", falls_back=("Tanh",) if bad else (), repeats=4 if bad else 1),
    ]


def case(runtime: str) -> Case:
    """The same build of the same model; its runtime is what differs."""
    build = Build(model=network, inputs={"x": normal(16, 128)})
    return Case(name=runtime, runtime=runtime, batch=16, good=build, bad=build)


CREEP = {
    which: Build(model=partial(chain, products=n), inputs={"x": normal(32, 192)})
    for which, n in (("first", 25), ("second", 26), ("third", 32))
}

SETS = {"": ("careless", "elsewhere", "partly", "costly"), "fading": ("fading",)}

CASES = tuple(case(runtime) for runtime in SETS[os.environ.get("CASE_SET", "")])
