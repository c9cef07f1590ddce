"""A reproduced fault: a good and a bad build of one model.

Every child that measures one imports this module with that of the case: it imports nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ONE_THREAD: Mapping[str, Mapping[str, Any]] = {
    "onnxruntime": {"intra_op_num_threads": 1},
    "openvino": {"INFERENCE_NUM_THREADS": 1},
    "torch": {"num_threads": 1},
}
"""So that a verdict needs few repeats. An option of a build is added to these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One way to build the model of a case; the arguments of ``portability.check``."""

    model: Any
    inputs: Any
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metric: Any = None
    runtime: str = ""

    @property
    def all_options(self) -> dict[str, dict[str, Any]]:
        """Its options, on one thread unless they say otherwise."""
        names = {*ONE_THREAD, *self.options}
        return {n: {**ONE_THREAD.get(n, {}), **self.options.get(n, {})} for n in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A good build and what became of it.

    Attributes:
        name: of the model; what the test looks the verdict up by.
    """

    name: str
    good: Build
    bad: Build
    runtime: str = "onnxruntime.cpu"
    precision: str = "native"
    batch: int = 1
