"""The torch runtimes and the modules that the contract suite is run with."""

from __future__ import annotations

import numpy as np
import torch
import torch_models

from pytest_portability.models import Arrays, Model
from runtimes.subjects import Subject


def mlp() -> Model:
    """The tiny module of the suite."""
    return torch_models.model(torch_models.seeded(torch_models.Mlp))


def inputs(batch: int) -> Arrays:
    """Its input, float32 [batch, WIDTH]."""
    return torch_models.rows(batch, torch_models.WIDTH)


def outputs(given: Arrays) -> Arrays:
    """What it computes, in float64."""
    module = torch_models.seeded(torch_models.Mlp).double()
    with torch.no_grad():
        result = module(torch.from_numpy(np.float64(given["0"])))
    return {"output": result.numpy()}


def torch_subjects() -> list[Subject]:
    """Eager and compiled, on the CPU."""
    return [
        Subject(
            name="torch",
            make_model=mlp,
            inputs=inputs,
            precisions=("fp32", "bf16", "fp16"),
            expected=outputs,
        ),
        Subject(name="torch.compile", make_model=mlp, inputs=inputs, expected=outputs),
    ]
