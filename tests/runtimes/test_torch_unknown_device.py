"""An accelerator that only an extension of torch knows, made of PyTorch's PrivateUse1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_portability import runtimes

_UNKNOWN = """
import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("acme")

class Held(torch.Tensor):
    @staticmethod
    def __new__(cls, raw):
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), dtype=raw.dtype, device="acme:0")
    def __init__(self, raw):
        self.raw = raw
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wanted = kwargs.get("device")
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        bare = lambda t: t.raw if isinstance(t, Held) else t
        result = func(*tree_map(bare, args), **tree_map(bare, kwargs))
        if wanted is not None and torch.device(wanted).type == "cpu":
            return result
        return tree_map(lambda t: Held(t) if isinstance(t, torch.Tensor) else t, result)

@torch.library.impl("aten::_to_copy", "PrivateUse1")
def to_copy(t, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
            memory_format=None):
    return Held((t.raw if isinstance(t, Held) else t).to(dtype or t.dtype))

@torch.library.impl("aten::empty_strided", "PrivateUse1")
def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Held(torch.empty_strided(size, stride, dtype=dtype))

import numpy as np
from pytest_portability.models import Model
from pytest_portability.runtimes import Request, library, load
from pytest_portability.targets import merge
found = merge(library("torch").devices()[0])
assert [t.id for t in found][:1] == ["acme"], found
assert found[0].handles == {"torch": "acme:0"}, found
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
inputs = {"0": np.ones((2, 8), np.float32)}
expected = load("torch").build(
    Request(model=Model(kind="torch", value=module), handle="cpu", platform="cpu")).predict(inputs)
request = Request(model=Model(kind="torch", value=module), handle="acme:0", platform="acme")
build = load("torch").build(request)
build.stage(inputs)
build.launch()
build.synchronize()
np.testing.assert_allclose(build.fetch()["output"], expected["output"], atol=1e-6)
observed = build.observed()
assert observed.asked_provider == "aten:acme", observed
assert observed.providers == {"aten:acme": 2}, observed
assert build.device_memory_bytes() is None
path = load("torch").trace(request, inputs)
assert {u.kernel.op for u in path.uses} == {"addmm", "gelu"}, path
assert path.caveats == ("no time per kernel: torch has no profiler for 'acme'",), path
print("done")
"""


@pytest.mark.skipif(
    "PORTABILITY_TEST_PRIVATEUSE1" not in os.environ,
    reason="uses torch's experimental backend registration; set PORTABILITY_TEST_PRIVATEUSE1=1",
)
def test_an_accelerator_nobody_has_heard_of_works(tmp_path: Path) -> None:
    """Through PyTorch's PrivateUse1, where everything optional raises."""
    script = tmp_path / "unknown.py"
    script.write_text(_UNKNOWN)
    root = Path(runtimes.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr
