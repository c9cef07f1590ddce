"""Fixed reference work per target, done by a library independent of the runtime under test.

It tells a slow machine from a slow build. On a CPU it is a GEMM by NumPy, done by as many threads
as the build keeps busy, each for itself: a BLAS on two threads spins between calls, which made its
own time vary by 67-109 % and slowed the model beside it 1.6-2.3 times, while one thread would not
see two virtual processors share a core, when its products took twice as long on two threads and a
build on two took half as long again. Where there is a record, it says how many, so that a build on
fewer threads than the record's is held against the same work. A copy yardstick tracks neighbours
four times worse than the GEMM does. On an accelerator it is a GEMM of bounded size plus a chain of
tiny kernels, because the same card behind another host CPU is the same target and launch latency
is part of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_portability.models import Arrays, Model
from pytest_portability.runtimes import Build

ENVIRONMENT: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "BLIS_NUM_THREADS": "1"}
"""Variables the child's server needs so that NumPy's BLAS stays on one thread. MKL's is left
alone: torch shares it."""

CPU_SIZE = 192
"""Three float32 matrices of 192 × 192 take 432 kB: inside a level-2 cache, so that the yardstick
neither waits for memory nor clears a large cache under the model's feet."""

MOST_THREADS = 8
"""More would wait for Python's lock, which each product needs for a microsecond of its 145."""

COPIED_BYTES = 32 * 2**20
"""Copied from one such block to another: together beyond most shares of a last-level cache."""

COPIES = 12
"""Some 40 ms."""

DEVICE_SIZE = 3072
NODE_SIZE = 1024
TINY_KERNELS = 64
"""58 GFLOP against 64 launches: by arithmetic, not yet by measurement, tenths of a millisecond each
on a data-centre card, so that neither half drowns the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """One unit of fixed work.

    Attributes:
        id: the work, the library that does it, and its version. Figures of other work or another
            library cannot be compared.
        run: does the given number of units, returns when they are done, and gives the CPU seconds
            that they took, of its slowest thread if it has several; 0 where a device does them.
            Not those of the process: threads of the model may still spin.
    """

    id: str
    run: Callable[[int], float]


def on_cpu(threads: int = 1) -> Yardstick:
    """A float32 GEMM by NumPy; its library must already be limited to one thread.

    Args:
        threads: how many do the same units at once, each its own.
    """
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, CPU_SIZE, CPU_SIZE), dtype=np.float32)

    def work(units: int) -> float:
        out, start = outs[threading.get_ident()], time.thread_time()
        # Always the same product: chained ones would overflow or become denormal, and slow.
        for _ in range(units):
            np.matmul(a, b, out=out)
        return time.thread_time() - start

    outs = {threading.get_ident(): np.empty_like(a)}
    name = f"gemm-{CPU_SIZE}-float32 {_blas()}"
    if threads == 1:
        return Yardstick(id=name, run=work)
    crew = _Crew(work, threads - 1, lambda: outs.update({threading.get_ident(): np.empty_like(a)}))
    return Yardstick(id=f"{threads}x{name}", run=crew.run)


def threads_of(id_: str) -> int:
    """How many threads do the work of this identity at once; 1 for what a device does."""
    count, times, _ = id_.partition("x")
    return int(count) if times and count.isdecimal() else 1


class _Crew:
    """Threads that wait asleep until they and the caller's thread are all to do the same work."""

    def __init__(
        self, work: Callable[[int], float], others: int, enlist: Callable[[], None]
    ) -> None:
        self._work = work
        self._units = 0
        self._spent: list[float] = []
        self._start = threading.Barrier(others + 1)
        self._end = threading.Barrier(others + 1)
        self._enlist = enlist
        for _ in range(others):
            threading.Thread(target=self._serve, daemon=True).start()

    def run(self, units: int) -> float:
        """Do the units in every thread; CPU seconds of the slowest, for which the others wait."""
        self._units, self._spent = units, []
        self._start.wait()
        self._spent.append(self._work(units))
        self._end.wait()
        return max(self._spent)

    def _serve(self) -> None:
        try:
            self._enlist()
            while True:
                self._start.wait()
                self._spent.append(self._work(self._units))
                self._end.wait()
        finally:  # or the others would wait forever
            self._start.abort()
            self._end.abort()


def copy_bandwidth() -> float:
    """Bytes that one thread copies from memory to memory per second of CPU time, undisturbed.

    A witness beside the yardstick, which waits for no memory: on an idle virtual machine whose
    products took the same time, a build that streams through its weights took 28 % longer than an
    hour before, for all machines on a host share its memory. A stream beside it slowed that build
    1.17 times and copies of this size 1.27 times; sums hardly followed, and copies of half the size
    became twice as slow.

    Returns:
        NaN where two such blocks cannot be had.
    """
    try:
        source, to = np.ones((2, COPIED_BYTES), np.uint8)
    except MemoryError:
        return math.nan
    times = []
    for _ in range(COPIES):
        start = time.thread_time()
        np.copyto(to, source)
        times.append(time.thread_time() - start)
    least = min(times)
    return COPIED_BYTES / least if least > 0 else math.nan


def _blas() -> str:
    """Name and version of NumPy's BLAS, which does the work; NumPy's own does not matter."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas.get('name', 'unknown')} {blas.get('version', 'unknown')}"


def node() -> tuple[Model, Arrays]:
    """A model of one float32 product, for ``on_build``, and its inputs."""
    import onnx  # noqa: PLC0415 - heavy, and only where torch does not reach the device

    shape = [NODE_SIZE, NODE_SIZE]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "aby"
    ]
    product = onnx.helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = onnx.helper.make_graph([product], "yardstick", values[:2], values[2:])
    opset = [onnx.helper.make_opsetid("", 13)]
    proto = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    a, b = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    return Model(kind="onnx", value=proto), {"a": a, "b": b}


def on_build(build: Build, name: str) -> Yardstick:
    """One node run by the runtime that is measured: where torch does not reach the device.

    It tells a slow device from a slow build less well than work of another library would.

    Args:
        build: of the one node, its inputs staged.
        name: of the runtime, then its version, where it tells one, after a space.
    """

    def run(units: int) -> float:
        for _ in range(units):
            build.launch()
        build.synchronize()
        return 0.0

    return Yardstick(id=f"matmul-{NODE_SIZE}-float32 {name}", run=run)


def on_device(handle: str) -> Yardstick:
    """A GEMM and a chain of tiny kernels by torch.

    The GEMM is in float16, which no switch for TF32 reaches: a build that is asked for TF32 sets
    its whole process to it, and the yardstick must not follow.

    Args:
        handle: torch's name of the device, such as ``cuda:0``.
    """
    import torch  # noqa: PLC0415 - heavy, and only where an accelerator is measured

    device = torch.device(handle)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(DEVICE_SIZE, DEVICE_SIZE, generator=generator).to(device, torch.float16)
    out = torch.empty_like(a)  # allocated once: the model's memory peak must not hold it
    tiny = torch.ones(16, device=device)

    def run(units: int) -> float:
        with torch.inference_mode():
            for _ in range(units):
                torch.mm(a, a, out=out)
                for _ in range(TINY_KERNELS):
                    tiny.mul_(1.0)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return 0.0

    library = next(
        (
            f"{kind} {v}"
            for kind in ("cuda", "hip", "xpu")
            if (v := getattr(torch.version, kind, None))
        ),
        f"torch {torch.__version__}",
    )
    name = f"gemm-{DEVICE_SIZE}+{TINY_KERNELS}-float16 {library}"
    return Yardstick(id=name, run=run)
