"""The project that ``device_check.py`` measures, the faults it seeds, and what each is owed.

Imported by pytest's process and by its children, so nothing heavy is imported here.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

PROJECT = '''
"""Written by benchmarks/device_check.py."""

import pytest
from device_faults import ask, here

PLAN = here()
TORCH = {"targets": [PLAN.target], "runtimes": ["torch"]}


@pytest.mark.portability(batches=PLAN.batches, precisions=PLAN.precisions, **TORCH)
def test_minilm(portability):
    portability.check(**ask(PLAN, "minilm", portability))


@pytest.mark.portability(batches=PLAN.batches, precisions=PLAN.precisions, **TORCH)
def test_conv(portability):
    portability.check(**ask(PLAN, "conv", portability))


@pytest.mark.portability(batches=PLAN.batches[-1:], **TORCH)
def test_wide(portability):
    portability.check(**ask(PLAN, "wide", portability))


@pytest.mark.portability(
    batches=PLAN.batches[:1], targets=[PLAN.target], runtimes=["torch.compile"]
)
def test_compiled(portability):
    portability.check(**ask(PLAN, "compiled", portability))


if PLAN.onnx:

    @pytest.mark.portability(
        batches=PLAN.batches, targets=[PLAN.target], runtimes=list(PLAN.onnx)
    )
    def test_onnx(portability):
        portability.check(**ask(PLAN, "onnx", portability))
'''

INI = """
[pytest]
portability_repeats = {repeats}
portability_seconds = {seconds}
portability_time_limit = 100
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        target: its id.
        handle: torch's name of it, such as ``cuda:0``.
        platform: ``cuda``, …, ``cpu``.
        size: a name in ``device_models.SIZES``.
        onnx: names of ONNX Runtime's runtimes to measure → their handles of the device.
        seconds: per repeat.
        repeats: most of them, of what is not a fault.
    """

    target: str
    handle: str
    platform: str
    size: str
    batches: Sequence[int]
    precisions: Sequence[str]
    onnx: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.3
    repeats: int = 2

    @property
    def on_device(self) -> bool:
        """Whether it is an accelerator."""
        return self.platform != "cpu"


@dataclass(frozen=True, slots=True)
class Owed:
    """What is right: words, each of which is.

    Attributes:
        causes: kinds that the first cause may be of; empty where only the machine may be blamed.
    """

    verdicts: str
    causes: str = ""


UNCHANGED = Owed("ok inconclusive improved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A second build of an item that was recorded as it should be.

    Attributes:
        model: the item's model.
        precision: of the item.
        place: position of its batch among the plan's.
        options: of torch, in place of the good build's.
        kwargs: of the model's factory.
        platforms: where it can show; empty for any accelerator.
        anywhere: whether the CPU shows it as well.
    """

    model: str
    precision: str
    place: int
    owed: Owed
    options: Mapping[str, Any] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    platforms: Sequence[str] = ()
    anywhere: bool = False

    def missing(self, plan: Plan) -> str:
        """Why it cannot be seeded here; empty if it can."""
        if not plan.on_device and not self.anywhere:
            return "needs a GPU"
        if self.platforms and plan.platform not in self.platforms:
            return f"needs {' or '.join(self.platforms)}, not {plan.platform}"
        if self.model == "onnx" and not plan.onnx:
            return "no ONNX item is measured here"
        return ""

    def hits(self, plan: Plan, model: str, precision: str, batch: int) -> bool:
        """Whether it is of this item; where the plan has no such precision, of its only one."""
        own = self.precision if self.precision in plan.precisions else plan.precisions[0]
        wanted = (self.model, own, plan.batches[self.place])
        return (model, precision, batch) == wanted and not self.missing(plan)


FAULTS: Mapping[str, Fault] = {
    "products without TF32": Fault(
        model="minilm",
        precision="native",
        place=-1,
        owed=Owed("regressed", "options precision"),
        options={},
        platforms=("cuda",),
    ),
    "convolutions without TF32": Fault(
        model="conv",
        precision="native",
        place=-1,
        owed=Owed("regressed", "options precision"),
        kwargs={"ieee": True},
        platforms=("cuda",),
    ),
    "math SDPA": Fault(
        model="minilm",
        precision="fp16",
        place=-1,
        owed=Owed("regressed", "options fusion"),
        options={"sdpa": "math"},
        anywhere=True,
    ),
    "CPU fallback": Fault(
        model="conv",
        precision="fp32",
        place=-1,
        owed=Owed("regressed placement", "fallback"),
        kwargs={"elsewhere": True},
    ),
    "a batch that does not fit": Fault(
        model="wide",
        precision="native",
        place=-1,
        owed=Owed("unfit", "memory"),
        kwargs={"capped": True},
        platforms=("cuda", "rocm", "xpu"),
    ),
    "CPU fallback of ONNX nodes": Fault(
        model="onnx",
        precision="native",
        place=-1,
        owed=Owed("regressed", "fallback"),
        kwargs={"elsewhere": True},
        platforms=("cuda", "rocm"),
    ),
    "graph breaks": Fault(
        model="compiled",
        precision="native",
        place=0,
        owed=Owed("regressed", "launches"),
        kwargs={"broken": True},
    ),
}
"""One at most for each item, so that a single run of pytest can check all of them."""


# --- in pytest's process ------------------------------------------------------------------------


def environment(plan: Plan, *, faulty: bool = False) -> dict[str, str]:
    """Variables that bring the plan to the project."""
    return {"DEVICE_PLAN": json.dumps(asdict(plan)), "DEVICE_FAULTY": str(int(faulty))}


def here() -> Plan:
    """The plan that the environment brings."""
    return Plan(**json.loads(os.environ["DEVICE_PLAN"]))


def ask(plan: Plan, model: str, item: Any) -> dict[str, Any]:
    """The arguments of ``portability.check`` for an item, with its fault where faults are on."""
    options = {"matmul_precision": "high"} if item.precision == "native" else {}
    kwargs: dict[str, Any] = {}
    if os.environ["DEVICE_FAULTY"] == "1":
        for fault in FAULTS.values():
            if fault.hits(plan, model, item.precision, item.batch):
                options = options if fault.options is None else dict(fault.options)
                kwargs = dict(fault.kwargs)
    make, inputs = MODELS[model]
    if kwargs.pop("capped", False):
        kwargs = {"device": plan.handle, "fits": plan.batches[-1] // 2}
    return {
        "model": functools.partial(make, plan.size, **kwargs),
        "inputs": functools.partial(inputs, plan.size),
        "name": model,
        "options": {} if model == "onnx" else {"torch": options},
    }


# --- in its children ----------------------------------------------------------------------------


def minilm(size: str) -> Any:
    """The transformer."""
    import device_models as made

    return made.seeded(made.MiniLm, made.SIZES[size])


def compiled(size: str, *, broken: bool = False) -> Any:
    """Two of its layers: a compiler takes long enough for these."""
    import device_models as made

    return made.seeded(made.MiniLm, made.SIZES[size], 2, broken=broken)


def conv(size: str, *, elsewhere: bool = False, ieee: bool = False) -> Any:
    """The convolutions."""
    import device_models as made
    import torch

    if ieee:
        torch.backends.cudnn.allow_tf32 = False
    return made.seeded(made.ConvNet, made.SIZES[size], elsewhere=elsewhere)


def wide(size: str, *, device: str = "", fits: int = 0) -> Any:
    """What needs memory."""
    import device_models as made

    return made.seeded(made.Wide, made.SIZES[size], device=device, fits=fits)


def onnx(size: str, *, elsewhere: bool = False) -> Any:
    """The transformer's layers as an ONNX graph."""
    import device_models as made

    return made.onnx_minilm(made.SIZES[size], elsewhere=elsewhere)


def _ids(size: str, batch: int, rng: Any) -> list[Any]:
    import device_models as made

    it = made.SIZES[size]
    return [rng.integers(0, it.words, (batch, it.tokens))]


def _images(size: str, batch: int, rng: Any) -> list[Any]:
    import device_models as made

    side = made.SIZES[size].image
    return [rng.standard_normal((batch, 3, side, side), dtype="float32")]


def _rows(_size: str, batch: int, rng: Any) -> list[Any]:
    return [rng.standard_normal((batch, 64), dtype="float32")]


def _states(size: str, batch: int, rng: Any) -> list[Any]:
    import device_models as made

    it = made.SIZES[size]
    return [rng.standard_normal((batch, it.tokens, it.width), dtype="float32")]


MODELS: Mapping[str, tuple[Any, Any]] = {
    "minilm": (minilm, _ids),
    "conv": (conv, _images),
    "wide": (wide, _rows),
    "compiled": (compiled, _ids),
    "onnx": (onnx, _states),
}
"""Name → the factory of the model and of its inputs."""
