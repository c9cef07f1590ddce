"""The object behind the ``portability`` fixture: what a test may ask for. Knows nothing of pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_portability.pipeline import Ask, Item, Result


class Checks(Protocol):
    """What the plugin does for a test."""

    def ask(self, node: Any, item: Item, **given: Any) -> Ask:
        """Everything a test asks for, with settings and defaults filled in."""

    def check(self, node: Any, item: Item, ask: Ask) -> Result:
        """Run the flow and give the test its outcome."""


class Portability:
    """The ``portability`` fixture of one item."""

    def __init__(self, hooks: Checks, node: Any, item: Item) -> None:
        self._hooks = hooks
        self._node = node
        self._item = item

    @property
    def target(self) -> str:
        """Id of the target, such as ``nvidia-h200``."""
        return self._item.target.id

    @property
    def runtime(self) -> str:
        """Name of the runtime, such as ``onnxruntime.cuda``."""
        return self._item.runtime.name

    @property
    def precision(self) -> str:
        """The precision asked for."""
        return self._item.precision

    @property
    def batch(self) -> int:
        """The batch size."""
        return self._item.batch

    def check(
        self,
        model: Any,
        inputs: Any,
        *,
        metric: Callable[..., Any] | None = None,
        reference: Any = None,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        profile: Mapping[str, int] | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        items: float | None = None,
        unit: str = "samples",
    ) -> Result:
        """Build the model for this item, measure it, and hold it against its record.

        Args:
            model: path of an ``.onnx`` file (from the test's own directory, else from the root
                directory), ``onnx.ModelProto``, ``torch.nn.Module``, or a function without
                arguments that makes one of these in the child process.
            inputs: callable ``(batch, rng) -> mapping or sequence of NumPy arrays``, or ready
                arrays whose leading dimension is the item's batch.
            metric: callable ``(predict) -> float | dict[str, float]`` for the task metric; it is
                called in the child with the measured build, outside the clock, and
                ``predict(inputs)`` gives the outputs by name.
            reference: outputs, or a callable ``(inputs) -> outputs``, where the CPU reference
                would be too slow or wrong.
            config: training configuration to keep in the record.
            name: the model's name; default the test's name without ``test_``.
            profile: named dimensions beside the batch, such as ``{"seq": 128}``.
            options: runtime name (or family) to its options.
            items: what one batch counts as; default the batch size.
            unit: of what one batch counts as, such as ``tokens``.

        Returns:
            The result; the test fails, skips or warns first if the verdict says so.
        """
        __tracebackhide__ = True
        ask = self._hooks.ask(
            self._node,
            self._item,
            model=model,
            inputs=inputs,
            metric=metric,
            reference=reference,
            config=config,
            name=name,
            profile=profile,
            options=options,
            items=items,
            unit=unit,
        )
        return self._hooks.check(self._node, self._item, ask)
