"""What the plugin costs and whether its figures are true, measured side by side in one run.

Prints one table: start-up with and without the plugin, collecting 1,000 items against plain
parametrized pytest, sustained throughput as reported against a hand-written tight loop of the same
runtime, and where the wall time of a checked item goes. Every row is a median, of ratios or
differences of neighbouring runs where there are two. Run it alone on the machine:

    python benchmarks/overhead.py [--quick]

Needs onnxruntime, openvino and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

PLAIN = """
import pytest

@pytest.mark.parametrize("item", range({count}))
def test_model(item):
    pass
"""

PORTABILITY = """
import pytest

@pytest.mark.portability(batches=range(1, {count} + 1), runtimes=["onnxruntime.cpu"])
def test_model(portability):
    pass
"""

MODEL = """
import numpy as np

WIDTH, LAYERS, BATCH = 256, 6, 32

def weights():
    rng = np.random.default_rng(0)
    scale = WIDTH ** -0.5
    return [rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) * scale for _ in range(LAYERS)]

def inputs(batch, rng):
    return {{"x": rng.standard_normal((batch, WIDTH), dtype=np.float32)}}

def onnx_model():
    import onnx
    from onnx import helper, numpy_helper, TensorProto

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])
    nodes, tensors, last = [], [], "x"
    for i, w in enumerate(weights()):
        tensors.append(numpy_helper.from_array(w, f"w{{i}}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{{i}}"], [f"m{{i}}"]))
        last = "y" if i == LAYERS - 1 else f"r{{i}}"
        nodes.append(helper.make_node("Relu", [f"m{{i}}"], [last]))
    graph = helper.make_graph(nodes, "mlp", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

def torch_module():
    import torch
    layers = []
    for w in weights():
        linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        linear.weight.data = torch.from_numpy(w.T.copy())
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).eval()
"""

ITEM = """
import pytest
import model

@pytest.mark.portability(runtimes=[{runtime!r}], batches=[model.BATCH], precisions=["fp32"])
def test_mlp(portability):
    make = model.{make}
    given = model.inputs
    if {make!r} == "torch_module":
        given = lambda batch, rng: list(model.inputs(batch, rng).values())
    portability.check(make, inputs=given, options={options!r})
"""

LOOPS = {
    "onnxruntime.cpu": """
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = ort.InferenceSession(
            model.onnx_model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        call = lambda: session.run(None, feed)
    """,
    "openvino": """
        import openvino as ov
        core = ov.Core()
        read = core.read_model(model.onnx_model().SerializeToString())
        hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        compiled = core.compile_model(read, "CPU", hints)
        request = compiled.create_infer_request()
        request.set_tensor("x", ov.Tensor(feed["x"]))
        call = lambda: request.infer(share_outputs=True)
    """,
    "torch": """
        import torch
        torch.set_num_threads(threads)
        module = model.torch_module()
        x = torch.from_numpy(feed["x"])
        call = lambda: module(x)
        around = torch.inference_mode
    """,
    "torch.compile": """
        import torch
        torch.set_num_threads(threads)
        module = torch.compile(model.torch_module())
        x = torch.from_numpy(feed["x"])
        call = lambda: module(x)
        around = torch.inference_mode
    """,
}

SIDE_BY_SIDE = """
import contextlib
import time
from statistics import median
import numpy as np
import model
from pytest_portability import models, yardstick
from pytest_portability.measure import Stopwatch
from pytest_portability.runtimes import Observed, Request, load
from pytest_portability.samples import Measurement, Memory, Repeat, Sampling

feed = model.inputs(model.BATCH, np.random.default_rng(0))
threads = 1
around = contextlib.nullcontext
{setup}
runtime = load({runtime!r})
build = runtime.build(Request(
    model=models.load(model.{make}, name="mlp"),
    handle={handle!r},
    platform="cpu",
    precision="fp32",
    options={options!r},
))
build.stage(feed if {make!r} == "onnx_model" else {{"input": feed["x"]}})
fixed = yardstick.on_cpu()

def reported():
    timing = Stopwatch(build, lambda _seen: fixed, Sampling(seconds=0.5), on_cpu=True).run()
    repeat = Repeat(
        windows=timing.windows,
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
    batch = model.BATCH
    whole = Measurement(repeats=(repeat,), batch=batch, batch_effective=batch, items=batch)
    return whole.throughput

def loop():
    start, calls = time.perf_counter(), 0
    with around():
        while time.perf_counter() < start + 0.5:
            for _ in range(10):
                call()
            calls += 10
    return model.BATCH * calls / (time.perf_counter() - start)

reported(), loop()
ratios, before = [], loop()
for _ in range({rounds}):
    figure, after = reported(), loop()
    ratios.append(figure / ((before + after) / 2))
    before = after
print(median(ratios))
"""

THREADS = {
    "onnxruntime.cpu": "intra_op_num_threads",
    "openvino": "INFERENCE_NUM_THREADS",
    "torch": "num_threads",
    "torch.compile": "num_threads",
}

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
"""What the plugin sets for torch and NumPy, so that the loop runs under the same policy."""


PROCESSES = 5
"""Processes in which the plugin's stopwatch and the loop take turns."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args(argv).quick else 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL.format())
        print("| figure | measured | rounds |\n|---|---|---|")
        _row("start-up, with the plugin − without", _start_up(folder, rounds * 5), rounds * 5)
        _row("heavy modules imported at start-up", _imports(folder), 1)
        items, discovery = _collect(folder, rounds)
        _row("collecting 1,000 items ÷ 1,000 plain parameters, discovery apart", items, rounds)
        _row("discovery of devices, once per run with --portability", discovery, rounds)
        for runtime in LOOPS:
            ratio = _side_by_side(folder, runtime, rounds)
            what = f"{runtime}: throughput reported ÷ tight loop"
            _row(what, f"{ratio:.3f}", rounds * PROCESSES)
        for runtime in LOOPS:
            for threads in (1, 0):
                _measure(folder, runtime, threads, rounds)
    return 0


def _row(what: str, value: str, rounds: int) -> None:
    print(f"| {what} | {value} | {rounds} |", flush=True)


def _run(command: Sequence[str], folder: Path, *, may_fail: bool = False) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**ENVIRONMENT, **os.environ},
    )
    seconds = time.perf_counter() - start
    # A false alarm is for detection.py to count; its figures are as good as any.
    if done.returncode not in {0, 5} and not (may_fail and done.returncode == 1):
        msg = f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)
    return seconds, done.stdout


def _pytest(*args: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]


def _start_up(folder: Path, rounds: int) -> str:
    (folder / "test_nothing.py").write_text("def test_nothing(): pass\n")
    with_it, without = [], []
    for _ in range(rounds):
        with_it.append(_run(_pytest("test_nothing.py"), folder)[0])
        without.append(_run(_pytest("-p", "no:portability", "test_nothing.py"), folder)[0])
    more = median(a - b for a, b in zip(with_it, without, strict=True))
    return f"{more * 1e3:+.0f} ms of {median(without) * 1e3:.0f} ms"


def _imports(folder: Path) -> str:
    heavy = ["numpy", "onnx", "onnxruntime", "openvino", "torch"]
    (folder / "conftest.py").write_text(
        f"import sys\ndef pytest_unconfigure(config):\n"
        f"    print('loaded', [m for m in {heavy} if m in sys.modules])\n"
    )
    _, out = _run(_pytest("-s", "test_nothing.py"), folder)
    (folder / "conftest.py").unlink()
    return next(line for line in out.splitlines() if line.startswith("loaded"))[7:]


def _collect(folder: Path, rounds: int) -> tuple[str, str]:
    """What 999 more items cost, and what the first one does, which waits for discovery."""
    seconds: dict[tuple[bool, int], list[float]] = {}
    for _ in range(rounds):
        for count in (1, 1000):
            for ours, text in ((False, PLAIN), (True, PORTABILITY)):
                (folder / "test_many.py").write_text(text.format(count=count))
                command = _pytest("--collect-only", "test_many.py", *["--portability"] * ours)
                seconds.setdefault((ours, count), []).append(_run(command, folder)[0])
    found = {key: median(values) for key, values in seconds.items()}
    more = {ours: found[ours, 1000] - found[ours, 1] for ours in (False, True)}
    whole = (found[False, 1] + more[True]) / found[False, 1000]
    discovery = found[True, 1] - found[False, 1]
    return (
        f"{whole:.2f} × ({more[True]:.2f} s against {more[False]:.2f} s for 999 more)",
        f"{discovery:.1f} s",
    )


def _side_by_side(folder: Path, runtime: str, rounds: int) -> float:
    """The plugin's stopwatch and the loop in turns on one thread, in several processes."""
    make = "torch_module" if runtime.startswith("torch") else "onnx_model"
    text = SIDE_BY_SIDE.format(
        setup=textwrap.dedent(LOOPS[runtime]),
        runtime=runtime,
        make=make,
        handle="CPU" if runtime == "openvino" else "cpu",
        options={THREADS[runtime]: 1},
        rounds=rounds,
    )
    (folder / "side_by_side.py").write_text(text)
    # Where a process puts the weights of the two makes up to 3 % of difference for its whole life.
    command = [sys.executable, "side_by_side.py"]
    return median(float(_run(command, folder)[1]) for _ in range(PROCESSES))


def _measure(folder: Path, runtime: str, threads: int, rounds: int) -> None:
    """A checked item on so many threads; 0 is the runtime's default."""
    make = "torch_module" if runtime.startswith("torch") else "onnx_model"
    options = {runtime: {THREADS[runtime]: threads}} if threads else {}
    (folder / "test_item.py").write_text(ITEM.format(runtime=runtime, make=make, options=options))
    command = _pytest("--portability", "--portability-report=json:report.json", "test_item.py")
    shutil.rmtree(folder / "baselines", ignore_errors=True)
    _run([*command, "--update-baselines"], folder)
    walls, beyond, inside, repeats = [], [], [], []
    for _ in range(rounds):
        _, out = _run([*command, "--durations=0", "-vv"], folder, may_fail=True)
        item = json.loads((folder / "report.json").read_text())["items"][0]
        figures = item["record"]["figures"]
        walls.append(_duration(out))
        beyond.append(walls[-1] - figures["build_s"] - figures["first_call_s"])
        timed = sum(_timed(window) for repeat in item["windows"] for window in repeat)
        inside.append(timed / walls[-1])
        repeats.append(len(item["windows"]))
    name = f"{runtime}, {f'{threads} thread' if threads else 'default threads'}"
    what = f"{median(walls):.1f} s, {median(beyond):.1f} s beyond its build"
    _row(f"{name}: a checked item, median of {median(repeats):.0f} repeats", what, rounds)
    _row(f"{name}: share of it inside windows of the model", f"{median(inside):.0%}", rounds)


def _timed(window: dict[str, Any]) -> float:
    return float(window["wall_s"])


def _duration(out: str) -> float:
    line = next(line for line in out.splitlines() if "call" in line and "test_item.py" in line)
    return float(line.split("s", 1)[0])


if __name__ == "__main__":
    sys.exit(main())
