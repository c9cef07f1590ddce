"""A made-up report of three models on three targets, with every kind of verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from synthetic import EP, FIGURES, PARITY, figures, record, steady, use

from pytest_portability import compare
from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison
from pytest_portability.kernels import KernelPath, KernelUse
from pytest_portability.loss import Interval
from pytest_portability.models import TensorSpec
from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Key, Record
from pytest_portability.report import Entry, Report
from pytest_portability.runtimes import Observed
from pytest_portability.samples import Latency, Measurement, Memory, Repeat, Window
from pytest_portability.targets import Absent, Target
from pytest_portability.verdicts import Verdict

H200 = Target(
    vendor="nvidia",
    arch="sm_90",
    product="NVIDIA H200",
    platform="cuda",
    memory_bytes=141 * 2**30,
    facts={"driver": "580.95"},
)
MI300X = Target(vendor="amd", arch="gfx942", product="AMD Instinct MI300X", platform="rocm")
XEON = Target(vendor="cpu", arch="x86_64", product="Intel Xeon 6.207 2c", platform="cpu")

MINILM = (
    use("Attention", 6, 0.42),
    use("FusedMatMul", 18, 0.36),
    use("SkipLayerNormalization", 12, 0.06),
    use("Transpose", 6, 0.04, role="layout"),
    use("MemcpyToHost", 2, 0.05, role="move"),
)
UNFUSED = (
    use("MatMul", 30, 0.44),
    use("Softmax", 6, 0.21),
    use("SkipLayerNormalization", 12, 0.04),
    use("Transpose", 24, 0.16, role="layout"),
    use("MemcpyToHost", 6, 0.11, role="move"),
)

OUTPUTS = (
    TensorSpec(name="last_hidden_state", dtype="float32", shape=(8, 128, 384)),
    TensorSpec(name="pooled", dtype="float32", shape=(8, 384)),
)


def measured(rate: float, items: float, *, repeats: int = 3, drift: float = 0.0) -> Measurement:
    """Windows about a throughput that waver by two percent, the same ones every time."""
    made = []
    for number in range(repeats):
        windows = []
        for n in range(40):
            waver = 0.02 * math.sin(2.4 * n + number) + 0.01 * math.sin(0.7 * n * (number + 1))
            wall = items / rate * 4 * (1 + waver + drift * n / 40)
            windows.append(
                Window(
                    batches=4,
                    wall_s=wall,
                    busy_s=wall,
                    yardstick_wall_s=0.001,
                    yardstick_busy_s=0.001,
                )
            )
        made.append(
            Repeat(
                windows=tuple(windows),
                straight=(),
                build_s=0.4,
                first_call_s=0.03,
                warmup_s=0.3,
                steady=True,
                latency=Latency(p50_s=0.01, p90_s=0.011, p99_s=0.012, calls=50),
                memory=Memory(),
                yardstick="gemm-numpy-256",
                observed=Observed(asked_provider=EP, providers={EP: 48}),
            )
        )
    return Measurement(repeats=tuple(made), batch=8, batch_effective=8, items=items)


def stored(
    key: Key, *, factor: float = 1.0, uses: tuple[KernelUse, ...] = MINILM, **changed: Any
) -> Record:
    """A record whose times are ``factor`` times the usual ones."""
    times = figures(steady(10 * factor), steady(10 * factor), batch_effective=key.batch)
    parity = replace(
        PARITY,
        outputs=OUTPUTS,
        error_rel=2.1e-5,
        floors_rel={"last_hidden_state": 3.1e-7, "pooled": 2.4e-7},
        metrics={"pair_margin": 0.412},
    )
    return record(
        **{
            "key": key,
            "figures": replace(times, burst_throughput=times.throughput * 1.04),
            "parity": parity,
            "path": KernelPath(runtime=key.runtime, uses=uses),
            **changed,
        }
    )


FAITHFUL = ParityVerdict(
    faithful=True,
    same_model=True,
    tolerance=1e-4,
    errors_rel={"last_hidden_state": 2.1e-5, "pooled": 1.2e-5},
    allowed_rel={"last_hidden_state": 1e-4, "pooled": 1e-4},
)


def judged(key: Key, verdict: Verdict, loss: float | None, **given: Any) -> Comparison:
    """A comparison whose figures agree with its loss."""
    factor = 1 / (1 - loss) if loss is not None else 1.0
    made = {
        "record": stored(key, factor=factor),
        "baseline": stored(key),
        "reason": "",
        "memory_rel": 0.0,
        "parity": FAITHFUL,
        **given,
    }
    if loss is None:
        return Comparison(verdict=verdict, **made)
    busy = Interval(axis="busy", value=loss, low=loss - 0.011, high=loss + 0.011)
    wall = Interval(axis="wall", value=loss + 0.004, low=loss - 0.03, high=loss + 0.038)
    return Comparison(verdict=verdict, loss=busy, axes=(busy, wall), speed=verdict, **made)


def key(model: str, target: Target, runtime: str, **changed: Any) -> Key:
    """A key at batch 8."""
    made = Key(model=model, target=target.id, runtime=runtime, precision="native", batch=8)
    return replace(made, **changed)


def entry(found: Comparison, of: Key, outcome: str, **given: Any) -> Entry:
    """An item of a test named for its model."""
    item = f"{of.target}-{of.runtime}-{of.precision}-b{of.batch}"
    nodeid = f"tests/test_{of.model.replace('-', '_')}.py::test_{of.model}[{item}]"
    rate = found.record.figures.throughput if found.record else 0.0
    sampled = measured(rate, FIGURES.items) if found.record else None
    made = {"measurement": sampled, "again": (nodeid,), **given}
    return Entry(nodeid=nodeid, key=of, comparison=found, outcome=outcome, **made)


def _regressed() -> Entry:
    of = key("minilm", H200, "onnxruntime.cuda", precision="fp16", profile=(("seq", 128),))
    slow = stored(
        of,
        factor=1.453,
        uses=UNFUSED,
        toolchain={"onnxruntime": "1.32.0", "cudnn": "9.14"},
        effective="fp16",
    )
    usual = stored(of, toolchain={"onnxruntime": "1.31.1", "cudnn": "9.14"}, effective="fp16")
    found = judged(
        of,
        Verdict.REGRESSED,
        0.312,
        record=slow,
        baseline=usual,
        memory_rel=0.12,
        reason="throughput: 31.2 % lost (30.1 to 32.3 %, busy), beyond the 5 % tolerance (default)",
        warnings=("6 launches more per inference, which cost nothing by themselves",),
    )
    causes = (
        Cause(
            kind="fusion",
            share=0.89,
            summary="Attention ×6 no longer fused: now MatMul ×12 + Softmax ×6",
            evidence=(
                "Attention ran as 1 fused kernel ×6",
                "changed with it: onnxruntime 1.31.1 → 1.32.0; op-set 20 → 21",
            ),
        ),
        Cause(
            kind="fallback",
            share=0.09,
            summary="4 nodes moved CUDA → CPU (Shape, Gather), with 2 host copies",
            evidence=("CUDAExecutionProvider 212 → 208 nodes, CPUExecutionProvider 0 → 4",),
        ),
    )
    return entry(found, of, "fail", causes=causes)


def _wrong() -> Entry:
    of = key("minilm", MI300X, "onnxruntime.migraphx", precision="fp16")
    off = "output 'pooled': relative L2 error 0.31 against the reference > 0.01"
    verdict = replace(
        FAITHFUL,
        faithful=False,
        failures=(off,),
        tolerance=1e-2,
        errors_rel={"last_hidden_state": 3.1e-3, "pooled": 0.31},
        allowed_rel={"last_hidden_state": 1e-2, "pooled": 1e-2},
    )
    found = judged(of, Verdict.PARITY, 0.02, reason=off, parity=verdict)
    data = Cause(kind="data", summary="'pooled' overflows fp16 first at /pooler/Exp", share=None)
    return entry(found, of, "fail", causes=(data,))


def varied() -> Report:
    """The report."""
    nodes = "asked for CUDAExecutionProvider, 100 % of the nodes ran on CPUExecutionProvider"
    torch, ort = "torch", "onnxruntime.cpu"
    ok, faster = key("minilm", XEON, ort), key("minilm", XEON, "torch.compile")
    placed = key("magika", H200, "onnxruntime.cuda")
    grown, unsure = key("magika", XEON, ort), key("magika", XEON, torch)
    new, died = key("silero-vad", MI300X, torch), key("silero-vad", XEON, torch)
    known, held = key("silero-vad", H200, torch), key("silero-vad", XEON, ort)
    nothing = key("silero-vad", H200, "onnxruntime.tensorrt", precision="int8", batch=1)
    twelve = "memory: 12 % more (210 MiB → 235 MiB, process), beyond 5 % and 4 MiB"
    more = replace(FIGURES, memory_process_bytes=235 * 2**20)
    big = stored(grown, figures=replace(more, batch_effective=8))
    unknown = "-6.1 to +4.2 %: the interval reaches beyond the 5 % tolerance (default)"
    entries = [
        _regressed(),
        _wrong(),
        entry(judged(ok, Verdict.OK, 0.008), ok, "pass"),
        entry(judged(faster, Verdict.IMPROVED, -0.21), faster, "pass"),
        entry(judged(placed, Verdict.PLACEMENT, None, reason=nodes), placed, "fail"),
        entry(
            judged(grown, Verdict.MEMORY, 0.002, record=big, memory_rel=0.119, reason=twelve),
            grown,
            "fail",
            causes=(Cause(kind="memory", summary="weights are held twice", share=1.0),),
        ),
        entry(judged(unsure, Verdict.INCONCLUSIVE, 0.01, reason=unknown), unsure, "warn"),
        entry(
            judged(new, Verdict.MISSING, None, baseline=None, memory_rel=None, reason="no record"),
            new,
            "pass",
            update="written",
        ),
        entry(compare.error("the child died: signal 11 (SIGSEGV) while it built"), died, "fail"),
        entry(judged(known, Verdict.REGRESSED, 0.08, reason="known: ROCm#1234"), known, "xfail"),
        entry(judged(held, Verdict.OK, -0.004), held, "pass"),
        entry(
            compare.error("int8 is for models that come quantised", skipped=True), nothing, "skip"
        ),
    ]
    return Report(
        targets=(H200, MI300X, XEON),
        absents=(Absent(name="openvino", reason="not installed: pip install openvino"),),
        recorded=frozenset({ok, faster, key("minilm", replace(H200, product="B200"), torch)}),
        session={
            "pytest_portability": "0.1.0",
            "pytest": "9.2.0",
            "python": "3.11.9",
            "commit": "0123456789abcdef",
            "finished": "2026-03-01T12:00:00+00:00",
        },
        entries=entries,
        problems=["the report markdown:/full/r.md was not written: No space left on device"],
    )
