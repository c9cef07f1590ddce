"""The fixed work that tells a slow machine from a slow build."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_portability import yardstick
from pytest_portability.runtimes import Request, load
from pytest_portability.servers import Servers

HERE = sys.modules[__name__]


@pytest.fixture
def children() -> Iterator[Servers]:
    with Servers() as made:
        yield made


def test_the_id_names_the_work_and_the_library_with_its_version() -> None:
    """The library is NumPy's BLAS: another NumPy with the same one does the same work."""
    work, library, version = yardstick.on_cpu().id.split()
    assert work == "gemm-192-float32"
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert (library, version) == (blas["name"], blas["version"])


def test_one_node_stands_in_where_torch_does_not_reach_the_device() -> None:
    """Run by the runtime that is measured, here on its CPU provider."""
    pytest.importorskip("onnxruntime")
    model, inputs = yardstick.node()
    request = Request(model=model, handle="cpu", platform="cpu")
    with contextlib.closing(load("onnxruntime.cpu").build(request)) as build:
        build.stage(inputs)
        fixed = yardstick.on_build(build, "onnxruntime.cpu")
        fixed.run(2)
        assert fixed.id == "matmul-1024-float32 onnxruntime.cpu"
        assert np.allclose(build.fetch()["y"], inputs["a"] @ inputs["b"], atol=1e-2)


def threads_before_and_after() -> tuple[int, int]:
    process = psutil.Process()
    fixed = yardstick.on_cpu()
    before = process.num_threads()
    fixed.run(3)
    return before, process.num_threads()


def test_the_work_on_a_cpu_starts_no_thread(children: Servers) -> None:
    """A two-thread BLAS spins between calls, which disturbs the model beside it."""
    before, after = children.call(
        threads_before_and_after, environment=yardstick.ENVIRONMENT, by_value=[HERE]
    )
    assert before == after


def test_the_work_is_the_same_however_often_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither overflow nor denormals may come up in a long run and slow it down."""
    results: list[Any] = []
    multiply = np.matmul

    def watched(a: Any, b: Any, out: Any) -> None:
        multiply(a, b, out=out)
        results[:] = [*results[:1], out.copy()]

    monkeypatch.setattr(yardstick, "CPU_SIZE", 16)
    monkeypatch.setattr(np, "matmul", watched)
    yardstick.on_cpu().run(10_000)
    first, last = results
    assert np.isfinite(last).all()
    assert (np.abs(last[last != 0]) > np.finfo(np.float32).tiny).all()
    assert np.array_equal(first, last)


@pytest.mark.parametrize(
    ("name", "threads"),
    [("2xgemm-192-float32 openblas 0.3", 2), ("gemm-192-float32 mkl x", 1), ("", 1), ("x", 1)],
)
def test_its_name_tells_the_threads_it_works_on(name: str, threads: int) -> None:
    assert yardstick.threads_of(name) == threads


def test_the_name_of_one_on_several_threads_is_read_back() -> None:
    assert yardstick.threads_of(yardstick.on_cpu(3).id) == 3


def test_a_thread_that_fails_lets_the_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the child until its time limit otherwise."""

    def refuse(*_args: Any, **_named: Any) -> None:
        raise MemoryError

    made = yardstick.on_cpu(2)
    caller, multiply = threading.current_thread(), np.matmul

    def failing(*args: Any, **named: Any) -> None:
        (multiply if threading.current_thread() is caller else refuse)(*args, **named)

    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    monkeypatch.setattr(np, "matmul", failing)
    with pytest.raises(threading.BrokenBarrierError):
        made.run(1)


@pytest.mark.parametrize("units", [1, 3])
def test_as_many_units_are_done_as_asked_for(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    calls: list[None] = []
    monkeypatch.setattr(np, "matmul", lambda _a, _b, out: calls.append(None))
    yardstick.on_cpu().run(units)
    assert len(calls) == units


def run_on_device() -> tuple[str, str, str, bool]:
    import torch  # noqa: PLC0415 - heavy, and only in a child

    from pytest_portability import yardstick  # noqa: PLC0415 - this function travels by value

    yardstick.DEVICE_SIZE = 64
    torch.set_float32_matmul_precision("high")
    made = yardstick.on_device("cpu")
    made.run(2)
    results = [cell.cell_contents for cell in made.run.__closure__ or ()]
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    finite = bool(tensors) and all(bool(value.isfinite().all()) for value in tensors)
    return made.id, torch.__version__, torch.get_float32_matmul_precision(), finite


def test_the_work_on_an_accelerator_is_done_by_torch(children: Servers) -> None:
    """It leaves torch's switches alone, and depends on none of those a build may set."""
    pytest.importorskip("torch")
    name, version, precision, finite = children.call(run_on_device, by_value=[HERE])
    assert name == f"gemm-64+64-float16 torch {version}"
    assert precision == "high"
    assert finite


def test_copies_are_counted_in_bytes_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e8 < yardstick.copy_bandwidth() < 1e12
    monkeypatch.setattr(yardstick, "COPIED_BYTES", 2**60)
    assert math.isnan(yardstick.copy_bandwidth())
