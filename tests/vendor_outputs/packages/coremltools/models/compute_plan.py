"""The compute plan, from the file ``plan.json`` in a compiled model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coremltools import ComputeUnit

DEVICES: dict[str, type] = {
    name: type(f"ML{name}ComputeDevice", (), {}) for name in ("CPU", "GPU", "NeuralEngine")
}


class MLComputePlan:
    """The plan of one model, either a program or a neural network."""

    def __init__(self, told: Any) -> None:
        self._told = told

    @classmethod
    def load_from_path(
        cls, path: str, compute_units: ComputeUnit = ComputeUnit.ALL
    ) -> MLComputePlan:
        """Read it; an older system refuses."""
        told = json.loads(Path(path, "plan.json").read_text(encoding="utf-8"))
        if "refuses" in told:
            raise ValueError(told["refuses"])
        assert isinstance(compute_units, ComputeUnit)
        return cls({**told, "units": compute_units.name})

    @property
    def model_structure(self) -> Any:
        """The operations of a program's function ``main``, or the layers of a network."""
        program = network = None
        if "program" in self._told:
            block = _block(self._told["program"])
            program = SimpleNamespace(functions={"main": SimpleNamespace(block=block)})
        else:
            layers = [SimpleNamespace(**layer) for layer in self._told["neuralnetwork"]]
            network = SimpleNamespace(layers=layers)
        return SimpleNamespace(program=program, neuralnetwork=network, pipeline=None)

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        """None for what runs nowhere."""
        name = getattr(operation, "device", "")
        if not name:
            return None
        device = DEVICES["CPU" if self._told["units"] == "CPU_ONLY" else name]()
        return SimpleNamespace(preferred_compute_device=device, supported_compute_devices=[device])

    get_compute_device_usage_for_neuralnetwork_layer = (
        get_compute_device_usage_for_mlprogram_operation
    )

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        """None where there is no estimate."""
        weight = getattr(operation, "weight", None)
        return None if weight is None else SimpleNamespace(weight=weight)


def _block(operations: list[dict[str, Any]]) -> Any:
    made = []
    for told in operations:
        outputs = [SimpleNamespace(name=name) for name in told["outputs"]]
        blocks = [_block(inner) for inner in told.get("blocks", [])]
        made.append(SimpleNamespace(**{**told, "outputs": outputs, "blocks": blocks}))
    return SimpleNamespace(operations=made)
