"""Whether window time, device events, a hand-written loop and kernel times agree; one process.

Run by ``device_check.py`` with the plan and the cases as JSON; prints one line of JSON for each
case, so that what was measured before an end is kept. With ``--neighbour DEVICE SECONDS`` it is
what shares the device: products in a loop, until it is ended or the seconds are over.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import device_faults
import numpy as np
from device_faults import Plan

from pytest_portability import models, yardstick
from pytest_portability.errors import error_text
from pytest_portability.measure import Stopwatch
from pytest_portability.models import Arrays
from pytest_portability.runtimes import Observed, Request, load
from pytest_portability.samples import Measurement, Memory, Repeat, Sampling, Window

WITHIN = 0.02
"""What the figures of one build may differ by."""

EXPLAINED = 0.9
"""Least share of a device-bound window that its kernels' own times have to add up to: between two
kernels of some ten microseconds the device waits for one."""

PROFILED_CALLS = 20


@dataclass(slots=True)
class Evented:
    """A build with a pair of device events around whatever stands between two synchronisations.

    Attributes:
        event: makes an event of the device's, None where there is none.
        spans: launches, seconds by events, and wall seconds from before the first launch until
            after the synchronisation.
    """

    build: Any
    event: Callable[[], Any] | None
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    launches: int = 0
    start_s: float = 0.0
    start: Any = None

    def launch(self) -> None:
        """Enqueue one inference; the first one after a synchronisation starts a span."""
        if not self.launches:
            self.start_s = time.perf_counter()
            if self.event is not None:
                self.start = self.event()
                self.start.record()
        self.launches += 1
        self.build.launch()

    def synchronize(self) -> None:
        """Wait, and end the span."""
        end = None
        if self.event is not None and self.launches:
            end = self.event()
            end.record()
        self.build.synchronize()
        wall_s = time.perf_counter() - self.start_s
        if end is not None:
            self.spans.append((self.launches, self.start.elapsed_time(end) / 1e3, wall_s))
        self.launches = 0

    def fetch(self) -> Arrays:
        """The outputs."""
        outputs: Arrays = self.build.fetch()
        return outputs


def agreement(case: dict[str, Any]) -> dict[str, str]:
    """Figure → what is wrong with it; empty where all that is known agrees.

    Args:
        case: what ``measured`` gave.
    """
    wrong = {}
    for name in ("reported_rel", "events_rel"):
        value = case.get(name)
        if value is not None and abs(value - 1) > WITHIN:
            wrong[name] = f"{value:.3f}, owed 1 ± {WITHIN:g}"
    busy = case.get("kernels_rel")
    if busy is not None and busy > 1 + WITHIN:
        wrong["kernels_rel"] = f"kernels take {busy:.3f} of the window, which holds them all"
    elif busy is not None and case["device_bound"] and busy < EXPLAINED:
        wrong["kernels_rel"] = f"kernels explain {busy:.3f} of the window, owed {EXPLAINED:g}"
    return wrong


def measured(
    plan: Plan, runtime: str, model: str, precision: str, batch: int, *, rounds: int
) -> dict[str, Any]:
    """One build, by the plugin's stopwatch, by events, by a loop and by its kernels."""
    seconds = plan.seconds
    make, make_inputs = device_faults.MODELS[model]
    arrays = make_inputs(plan.size, batch, np.random.default_rng(0))
    names = ["x"] if model == "onnx" else [str(i) for i in range(len(arrays))]
    inputs = dict(zip(names, arrays, strict=True))
    torch_runs = runtime.startswith("torch")
    request = Request(
        model=models.load(make(plan.size), name=model),
        handle=plan.onnx.get(runtime, plan.handle),
        platform=plan.platform,
        precision=precision,
        options={"matmul_precision": "high"} if torch_runs and precision == "native" else {},
    )
    fixed = yardstick.on_device(plan.handle) if plan.on_device else yardstick.on_cpu()
    with contextlib.closing(load(runtime).build(request)) as build:
        build.stage(inputs)
        event = _event(plan) if torch_runs else None
        call, around, wait = (_torch_loop if torch_runs else _ort_loop)(build, plan)
        loop = _Loop(call, around, wait, seconds)
        ratios, events, reported_s = [], [], []
        loop.run()
        before = loop.run()
        for _ in range(rounds):
            evented = Evented(build, event)
            wall_s, batches = _reported(evented, fixed, seconds, plan)
            after = loop.run()
            ratios.append((before + after) / 2 / wall_s)
            reported_s.append(wall_s)
            events += [e / w for n, e, w in evented.spans if n == batches]
            before = after
        kernels_s = _kernels_s(call, around, wait, plan) if torch_runs else None
    window_s = median(reported_s)
    return {
        "runtime": runtime,
        "model": model,
        "precision": precision,
        "batch": batch,
        "window_s": window_s,
        "loop_s": before,
        "reported_rel": median(ratios),
        "events_rel": median(events) if events else None,
        "kernels_s": kernels_s,
        "kernels_rel": kernels_s / window_s if kernels_s else None,
        "device_bound": batch == max(plan.batches) and precision == "fp32",
    }


def _reported(
    build: Evented, fixed: yardstick.Yardstick, seconds: float, plan: Plan
) -> tuple[float, int]:
    """Seconds per batch as the plugin reports them, and the batches of its windows."""
    watched: Any = build
    sampling = Sampling(seconds=seconds)
    stopwatch = Stopwatch(watched, lambda _seen: fixed, sampling, on_cpu=not plan.on_device)
    timing = stopwatch.run()
    windows: tuple[Window, ...] = timing.windows
    repeat = Repeat(
        windows=windows,
        straight=timing.straight,
        build_s=0.0,
        first_call_s=timing.first_call_s,
        warmup_s=timing.warmup_s,
        steady=timing.steady,
        latency=timing.latency,
        memory=Memory(),
        yardstick=fixed.id,
        observed=Observed(),
    )
    whole = Measurement(repeats=(repeat,), batch=1, batch_effective=1, items=1)
    return whole.wall_s, windows[0].batches


# --- by hand ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loop:
    """What an engineer would write: calls, one wait, one clock."""

    call: Callable[[], Any]
    around: Callable[[], Any]
    wait: Callable[[], Any]
    seconds: float

    def run(self) -> float:
        """Seconds per call."""
        with self.around():
            start = time.perf_counter()
            self.call()
            self.wait()
            calls = max(3, int(self.seconds / (time.perf_counter() - start)))
            start = time.perf_counter()
            for _ in range(calls):
                self.call()
            self.wait()
            return (time.perf_counter() - start) / calls


def _torch_loop(build: Any, plan: Plan) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    import torch

    module, args = build.module, tuple(t.clone() for t in _staged(build))
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(build.request.precision)
    device = torch.device(plan.handle)

    def call() -> Any:
        if half is None:
            return module(*args)
        with torch.autocast(device.type, dtype=half):
            return module(*args)

    def wait() -> None:
        if plan.on_device:
            torch.accelerator.synchronize(device)

    return call, torch.inference_mode, wait


def _staged(build: Any) -> tuple[Any, ...]:
    """What is on the device for the build to take."""
    found: tuple[Any, ...] = build._args  # noqa: SLF001 - of the same project
    return found


def _ort_loop(build: Any, plan: Plan) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    import onnxruntime

    session, feeds = build._session, build._feeds  # noqa: SLF001 - of the same project
    memory = build._provider.memory  # noqa: SLF001
    if not memory:
        return lambda: session.run(None, feeds), contextlib.nullcontext, lambda: None
    binding = session.io_binding()
    index = int(plan.onnx[build._provider.runtime].partition(":")[2] or 0)  # noqa: SLF001
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, memory, index)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return (
        lambda: session.run_with_iobinding(binding, options),
        contextlib.nullcontext,
        binding.synchronize_outputs,
    )


# --- the device's own clock ---------------------------------------------------------------------


def _event(plan: Plan) -> Callable[[], Any] | None:
    """Makes events on the current stream; None where torch has none for the device."""
    import torch

    module = getattr(torch, plan.handle.partition(":")[0], None)
    kind = getattr(module, "Event", None) if plan.on_device else None
    return None if kind is None else lambda: kind(enable_timing=True)


def _kernels_s(
    call: Callable[[], Any], around: Callable[[], Any], wait: Callable[[], Any], plan: Plan
) -> float | None:
    """Seconds that the kernels and copies of one call take on the device, None where unknown."""
    if not plan.on_device:
        return None
    from torch.profiler import ProfilerActivity, profile, supported_activities

    kind = plan.handle.partition(":")[0].upper()
    activity = getattr(ProfilerActivity, kind, None)
    if activity is None or activity not in supported_activities():
        return None
    with around():
        for _ in range(2):  # the first one loads the profiler's library
            with profile(activities=[ProfilerActivity.CPU, activity]) as profiler:
                for _ in range(PROFILED_CALLS):
                    call()
                wait()
    spent_us = sum(
        event.time_range.elapsed_us()
        for event in profiler.events()
        if not str(event.device_type).endswith("CPU")
        and not getattr(event, "is_user_annotation", False)
    )
    return float(spent_us) / 1e6 / PROFILED_CALLS or None


def neighbour(handle: str, seconds: float) -> None:
    """Products on the device, queued a few at a time."""
    import torch

    a = torch.randn(4096, 4096, device=handle, dtype=torch.float16)
    out = torch.empty_like(a)
    print("ready", flush=True)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(8):
            torch.mm(a, a, out=out)
        torch.accelerator.synchronize(torch.device(handle))


def main(argv: list[str]) -> int:
    """Measure the cases of the specification, or be the neighbour."""
    if argv[:1] == ["--neighbour"]:
        neighbour(argv[1], float(argv[2]))
        return 0
    given = json.loads(argv[0])
    plan = Plan(**given["plan"])
    for case in given["cases"]:
        try:
            found = measured(plan, *case, rounds=given["rounds"])
        except Exception as exc:  # noqa: BLE001 - one that fails must not cost the others
            names = ("runtime", "model", "precision", "batch")
            found = {**dict(zip(names, case, strict=True)), "error": error_text(exc)[:300]}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
