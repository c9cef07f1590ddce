"""What is stored of one measurement, as types. ``records`` gives them out and knows the files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_portability.kernels import KernelPath
from pytest_portability.parity import Computed, Parity

AT_ONCE = 1.05
"""Threads at work at once beyond which there are several: a pool that waits does a little, too."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """What a record is of; unique in a run.

    Attributes:
        profile: named dimensions beside the batch, ``{"seq": 128}`` as ``(("seq", 128),)``.
    """

    model: str
    target: str
    runtime: str
    precision: str
    batch: int
    profile: tuple[tuple[str, int], ...] = ()

    @property
    def row(self) -> str:
        """The name of its table in the file, such as ``onnxruntime.cpu-native-b8-seq128``."""
        dims = "".join(f"-{name}{size}" for name, size in self.profile)
        return f"{self.runtime}-{self.precision}-b{self.batch}{dims}"

    def __str__(self) -> str:
        """Such as ``minilm onnxruntime.cpu-native-b8 on cpu-amd-epyc-2c``."""
        return f"{self.model} {self.row} on {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One figure per batch: seconds, and the same relative to the yardstick.

    Attributes:
        seconds: median over repeats.
        ratio: geometric mean over repeats of undisturbed seconds ÷ one unit of the yardstick,
            undisturbed likewise.
        spread_rel: standard deviation between repeats of ln(ratio); 0 with one repeat.
        unrest_rel: how much longer the typical window took than an undisturbed one, median over
            repeats; None where unknown.
    """

    seconds: float
    ratio: float
    spread_rel: float
    unrest_rel: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a build achieved at its profile; seconds, bytes, items per second.

    Attributes:
        memory_process_bytes: growth of the process, the least over repeats.
        memory_process_most_bytes: the most over repeats; allocators settle in one of a few states,
            so only growth beyond both is growth.
        contended: share (0–1) of the processor that neighbours took meanwhile, None where unknown.
        threads_at_once: CPU time of all threads ÷ the busiest one's, median over repeats; None
            where unknown. What was set is ``Record.threads``.
        copy_bandwidth: bytes that one thread copied in memory per second, median over repeats;
            None where unknown.
        throttled: why the device was throttled in at least half of the repeats. Clocks and
            temperatures are in the JSON report: here they would change with every update.
        neighbours: other processes on the accelerator meanwhile, None where none were seen.
        faults_per_batch: minor page faults per batch, None where unknown; an allocator that gives
            memory back and takes it again shows here.
    """

    throughput: float
    unit: str
    items: float
    repeats: int
    wall: Axis
    busy: Axis | None
    burst_throughput: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    yardstick: str
    yardstick_s: float
    build_s: float
    first_call_s: float
    memory_device_bytes: int | None
    memory_arena_bytes: int | None
    memory_process_bytes: int | None
    batch_effective: int
    memory_process_most_bytes: int | None = None
    contended: float | None = None
    threads_at_once: float | None = None
    copy_bandwidth: float | None = None
    throttled: tuple[str, ...] = ()
    neighbours: int | None = None
    faults_per_batch: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        """The one figure to show: of the device where known, else of the process or the arena."""
        return self.memory_device_bytes or self.memory_process_bytes or self.memory_arena_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """The model scope of a record: what does not depend on the target."""

    kind: str
    framework: str
    opset: Mapping[str, int]
    weights: str
    tensors: Mapping[str, str]
    graph: str
    parameters: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A worse figure that was accepted on purpose.

    Attributes:
        date: ISO 8601, UTC.
        verdict: the verdict it replaced, such as ``regressed``.
        before: items per second until then.
        after: items per second since.
        loss: what that meant for the build: of its throughput, relative to the yardstick where
            there was one, as a fraction; None where speed was not compared.
    """

    date: str
    reason: str
    verdict: str
    before: float
    after: float
    loss: float | None = None

    @property
    def ratio(self) -> float:
        """Throughput since ÷ until then, as far as it is known."""
        if self.loss is not None:
            return 1 - self.loss
        ratio = self.after / (self.before or math.nan)
        return ratio if math.isfinite(ratio) else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is stored of one measurement. A baseline is a committed Record.

    Attributes:
        effective: the precision that was observed, empty where the runtime does not say.
        toolchain: library, driver, compiler → version.
        options: options in force and the environment variables that change speed.
        providers: provider → number of nodes it got.
        commit: git commit measured at, empty outside a repository.
        measured: ISO 8601 time, UTC.
    """

    key: Key
    model: ModelVersion
    vendor: str
    arch: str
    product: str
    platform: str
    effective: str
    toolchain: Mapping[str, str]
    options: Mapping[str, str]
    providers: Mapping[str, int]
    threads: int | None
    graph_breaks: int | None
    compiled: bool | None
    figures: Figures
    path: KernelPath
    parity: Parity
    commit: str
    measured: str
    accepted: tuple[Accepted, ...] = ()

    @property
    def parallel(self) -> bool:
        """Whether several threads were at work, or may have been."""
        seen = self.figures.threads_at_once
        return self.threads != 1 if seen is None else seen > AT_ONCE

    @property
    def computed(self) -> Computed:
        """What ``parity.judge`` has to know of it."""
        return Computed(
            parity=self.parity,
            precision=self.key.precision,
            effective=self.effective,
            weights=self.model.weights,
            tensors=self.model.tensors,
        )

    @property
    def accepted_so_far(self) -> str:
        """Such as ``accepted so far: −24 % in 8 steps since 2026-03-01``; empty without steps.

        The steps multiply: 1 − loss of each, where that is not known after ÷ before, without two
        usable figures 1. What became faster in between is not in it.
        """
        if not self.accepted:
            return ""
        change = round(100 * (math.prod(step.ratio for step in self.accepted) - 1))
        sign = "−" if change < 0 else "+" if change > 0 else "±"
        since = min(step.date for step in self.accepted)[:10]
        steps = f"{len(self.accepted)} step" + ("s" if len(self.accepted) > 1 else "")
        return f"accepted so far: {sign}{abs(change)} % in {steps} since {since}"
