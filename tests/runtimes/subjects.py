"""The runtimes that the contract suite is run with: what is installed here, and the fake."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_models

from pytest_portability import models
from pytest_portability.models import Arrays, Model
from pytest_portability.runtimes import Runtime
from runtimes.fake import FakeRuntime


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A runtime and a model that it must be able to run.

    Attributes:
        name: name of the runtime.
        make_model: a model of a kind the runtime builds; called once per test.
        inputs: batch → inputs with that leading dimension, seeded.
        platform: of the device, ``cpu`` mostly.
        handle: of the device, in the library's words.
        precisions: those that must work here, beside ``native``.
        expected: inputs → outputs in the model's order, as exact as possible; None to check only
            shapes and finiteness.
        tolerance: allowed absolute difference of ``fp32``.
        native_tolerance: of ``native``, where the runtime may choose a lower precision.
        registered: the runtime itself, where no name leads to it.
        suffix: added to the name in the test's id.
    """

    name: str
    make_model: Callable[[], Model]
    inputs: Callable[[int], Arrays]
    platform: str = "cpu"
    handle: str = "cpu"
    precisions: tuple[str, ...] = ("fp32",)
    expected: Callable[[Arrays], Arrays] | None = None
    tolerance: float = 1e-5
    native_tolerance: float = 0.05
    registered: Runtime | None = None
    suffix: str = ""

    @property
    def id(self) -> str:
        """Name in the test's id."""
        return self.name + self.suffix


def mlp() -> Model:
    """The tiny ONNX model of the suite."""
    return models.load(onnx_models.mlp())


def mlp_inputs(batch: int) -> Arrays:
    """Its inputs ``x`` float32 [batch, 4, 64]."""
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 4, onnx_models.WIDTH), dtype=np.float32)}


def mlp_outputs(inputs: Arrays) -> Arrays:
    """What it computes, in float64."""
    return {"y": onnx_models.mlp_expected(inputs["x"])}


def _onnx(name: str, handle: str, precisions: tuple[str, ...] = ("fp32",)) -> Subject:
    return Subject(
        name=name,
        make_model=mlp,
        inputs=mlp_inputs,
        handle=handle,
        precisions=precisions,
        expected=mlp_outputs,
    )


def _fake(runtime: FakeRuntime, suffix: str) -> Subject:
    return Subject(
        name="fake",
        make_model=mlp,
        inputs=mlp_inputs,
        expected=mlp_outputs,
        registered=runtime,
        suffix=suffix,
    )


def _torch() -> list[Subject]:
    """Those of ``torch_subjects.py``, if torch is installed."""
    needed = ("torch", "runtimes.torch_subjects")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return []
    return list(importlib.import_module("runtimes.torch_subjects").torch_subjects())


def _here() -> list[Subject]:
    possible = [
        ("onnxruntime", _onnx("onnxruntime.cpu", "cpu")),
        ("onnxruntime_ep_openvino", _onnx("onnxruntime.openvino", "cpu")),
        ("openvino", _onnx("openvino", "CPU")),
    ]
    fakes = [_fake(FakeRuntime(), ""), _fake(FakeRuntime(asynchronous=True), "-asynchronous")]
    return [
        *fakes,
        *(subject for package, subject in possible if importlib.util.find_spec(package)),
        *_torch(),
    ]


SUBJECTS = _here()
