"""A runtime of one's own, registered by hook: the reference evaluator that ships with onnx.

An adapter is a class with the attributes and the three methods below, and a build with seven; the
plugin runs it in child processes, so the class travels there by value.
"""

from collections import Counter

import numpy as np

from pytest_portability import Kernel, KernelPath, KernelUse, Observed


class ReferenceRuntime:
    """Runs ONNX models node by node in NumPy: slow, and right."""

    name = "onnx.reference"
    family = "onnx"
    packages = ("numpy", "onnx")
    kinds = ("onnx",)
    converted = ()
    environment = {}  # noqa: RUF012 - never changed

    def supports(self, precision, platform):
        """It computes in the model's own types and has no switch for others."""
        return "" if precision == "native" else f"the evaluator has no {precision}"

    def build(self, request):
        """An executable of ``request.model``."""
        return ReferenceBuild(request.model)

    def trace(self, request, inputs, runs=3):
        """Every node is its own kernel; nothing is fused and no time is known."""
        counts = Counter(node.op_type for node in request.model.value.graph.node)
        uses = tuple(
            KernelUse(kernel=Kernel(provider="numpy", op=op), launches=n)
            for op, n in sorted(counts.items())
        )
        return KernelPath(runtime=self.name, uses=uses, source=counts)


class ReferenceBuild:
    """``launch`` does the work at once, so ``synchronize`` has nothing to wait for."""

    def __init__(self, model):
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(model.value)
        self._nodes = len(model.value.graph.node)
        self._staged, self._outputs = {}, []

    def stage(self, inputs):
        self._staged = inputs

    def launch(self):
        self._outputs = self._evaluator.run(None, self._staged)

    def synchronize(self):
        pass

    def fetch(self):
        names = self._evaluator.output_names
        return {name: np.array(a) for name, a in zip(names, self._outputs, strict=True)}

    def predict(self, inputs):
        outputs = self._evaluator.run(None, inputs)
        return dict(zip(self._evaluator.output_names, map(np.array, outputs), strict=True))

    def observed(self):
        return Observed(
            precision="fp32",
            providers={"numpy": self._nodes},
            threads=1,
            toolchain={"numpy": np.__version__},
        )

    def threads(self):
        return 1

    def device_memory_bytes(self):
        return None

    def close(self):
        self._evaluator = None


def pytest_portability_runtimes(config):
    """Add the runtime to those a test can be built with."""
    return [ReferenceRuntime()]
