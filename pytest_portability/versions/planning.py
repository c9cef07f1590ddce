"""The way to a target that a model never ran on: what is known, what to try, what to hold it to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_portability import records
from pytest_portability.errors import UsageError
from pytest_portability.records import Key, Record

BUILDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "onnx": {
        "nvidia": ("onnxruntime.cuda", "onnxruntime.tensorrt"),
        "amd": ("onnxruntime.migraphx",),
        "intel": ("openvino", "onnxruntime.openvino"),
        "apple": ("onnxruntime.coreml",),
        "qualcomm": ("onnxruntime.qnn",),
        "huawei": ("onnxruntime.cann",),
        "cpu": ("onnxruntime.cpu", "openvino"),
    },
    "torch": {
        "nvidia": ("torch", "torch.compile"),
        "amd": ("torch", "torch.compile"),
        "intel": ("torch", "torch.compile"),
        "apple": ("torch",),
        "cpu": ("torch", "torch.compile"),
    },
}
"""Kind of model → vendor → runtimes that build it natively there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The five steps of a reproduction, each with what is known of it.

    Attributes:
        model: name of the model.
        target: id of the target, which need not be here.
        steps: title → lines.
        command: what to run there, for a POSIX shell; the closest record is shown then, too.
        problems: files that cannot be read, one message each.
    """

    model: str
    target: str
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    command: str
    problems: tuple[str, ...]


def plan(directory: Path, model: str, target: str) -> Plan:
    """How to reproduce a model on a target, from the records that there are of both.

    Args:
        directory: of the records.
        model: name of the model.
        target: id of the target.

    Raises:
        UsageError: there is no record of the model.
    """
    every, problems = records.read_all(directory)
    of_model = {key: record for key, record in every.items() if key.model == model}
    if not of_model:
        known = ", ".join(sorted({key.model for key in every})) or "none"
        unread = f"; {len(problems)} files cannot be read: {problems[0]}" if problems else ""
        msg = f"no record of a model {model!r} in {directory}; models there: {known}{unread}"
        raise UsageError(msg)
    there = [record for record in every.values() if record.key.target == target]
    vendor = there[0].vendor if there else target.partition("-")[0]
    arch = there[0].arch if there else ""
    newest = max(of_model.values(), key=lambda record: record.measured)
    wanted = Key(
        model=model,
        target=target,
        runtime=_builds(newest, vendor)[0],
        precision=newest.key.precision,
        batch=newest.key.batch,
        profile=newest.key.profile,
    )
    close, why = records.closest(of_model, wanted, arch, vendor) or (newest, "the newest record")
    return Plan(
        model=model,
        target=target,
        steps=(
            ("1. what does not depend on the target", tuple(_constants(newest, directory))),
            ("2. builds that are valid with it", tuple(_valid(newest, vendor))),
            ("3. the build path there", tuple(_toolchain(there, close, target))),
            ("4. precision to begin with", tuple(_precision(close))),
            ("5. what to hold it against", (f"{_named(close)}: {why}",)),
        ),
        command=shlex.join(
            [
                *("pytest", "--portability", f"--portability-require={target}"),
                *["--update-baselines"] * (target not in {key.target for key in of_model}),
                *("-k", model),
            ]
        ),
        problems=problems,
    )


def _named(record: Record) -> str:
    figures = record.figures
    rate = f"{figures.throughput:.4g} {figures.unit}/s"
    return f"{record.key.row} on {record.key.target} ({rate}, measured {record.measured})"


def _constants(record: Record, directory: Path) -> Iterator[str]:
    model = record.model
    yield f"weights {model.weights} ({model.parameters:,} parameters), graph {model.graph or '–'}"
    for name, value in sorted(model.config.items()):
        yield f"{name} = {value}"
    place = records.path_of(directory, record.key.model, record.key.target)
    at = f", measured at commit {record.commit}" if record.commit else ""
    yield f"recorded in {place}{at}; the test there says where the files are"


def _builds(record: Record, vendor: str) -> Sequence[str]:
    return BUILDS.get(record.model.kind, {}).get(vendor, (record.key.runtime,))


def _valid(record: Record, vendor: str) -> Iterator[str]:
    model = record.model
    opset = ", ".join(f"{name or 'ai.onnx'} {n}" for name, n in sorted(model.opset.items()))
    made = f" of {model.framework}" if model.framework else ""
    yield f"{model.kind}{made}{f', op-set {opset}' if opset else ''}"
    known = vendor in BUILDS.get(record.model.kind, {})
    builds = ", ".join(_builds(record, vendor)) if known else "no runtime of it is known to us"
    yield f"on {vendor}: {builds}"
    if model.kind == "torch":
        yield "or exported to ONNX where the test names such a runtime; the op-set decides fusions"


def _toolchain(there: Sequence[Record], close: Record, target: str) -> Iterator[str]:
    for record in sorted(there, key=lambda record: record.measured)[-1:]:
        yield f"seen on {target}: {_versions(record)} (with {record.key.model})"
    if not there:
        yield f"nothing was recorded on {target} yet: its toolchain is not known"
    yield f"of the closest record: {_versions(close)}"
    if close.options:
        options = ", ".join(f"{name}={value}" for name, value in sorted(close.options.items()))
        yield f"its options in force: {options}"


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {v}" for name, v in sorted(record.toolchain.items())) or "not told"


def _precision(close: Record) -> Iterator[str]:
    ran = close.effective or "not known"
    yield f"{close.key.precision} was asked for, {ran} is what ran"
    parity = close.parity
    floor = max(parity.floors_rel.values(), default=0.0)
    yield f"its error against {parity.reference}: {parity.error_rel:.2g} (floor {floor:.2g})"
    for name, value in sorted(parity.metrics.items()):
        yield f"{name} = {value:.5g}"
