"""The object behind the ``portability`` fixture: what a test may ask for. Knows no pytest."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pytest_portability import compare, device_lock, run, settings, targets, verdicts
from pytest_portability.compare import Comparison
from pytest_portability.errors import PortabilityError, UsageError, error_text
from pytest_portability.ledger import Claims, Updates
from pytest_portability.pipeline import Ask, Item, Pipeline, Result
from pytest_portability.report import Entry, terminal
from pytest_portability.runtimes import Runtime
from pytest_portability.settings import Setting
from pytest_portability.verdicts import Verdict

MOST_SIZE = 2**63
"""Beyond it a TOML file cannot hold the number."""


class Host(Protocol):
    """What the plugin does for a test."""

    @property
    def root(self) -> Path:
        """Where paths of models start that are not beside the test."""

    @property
    def registered(self) -> Sequence[Runtime]:
        """Runtimes that conftests and plugins add."""

    @property
    def modules(self) -> list[ModuleType]:
        """Modules that children cannot import."""

    @property
    def pipeline(self) -> Pipeline:
        """The flow."""

    @property
    def claims(self) -> Claims:
        """Who has which record key."""

    @property
    def updates(self) -> Updates | None:
        """What is written, None where nothing is."""

    def setting(self, name: str, marker: Mapping[str, Any] | None = None) -> Setting[Any]:
        """A setting from all the places it can be set in."""

    def progress(self, text: str) -> None:
        """Show what is going on; an empty text when it is over."""

    def environment(self, node: Any) -> Mapping[Any, Any]:
        """Variables that hooks want."""

    def causes(self, node: Any, comparison: Comparison) -> Sequence[Any]:
        """What hooks say about a comparison."""

    def again(self, nodeid: str) -> tuple[str, ...] | None:
        """Arguments that measure an item again, to record it; None where that is not meant."""

    def keep(self, node: Any, entry: Entry) -> None:
        """Have an entry reported."""

    def benchmarked(self, node: Any, entry: Entry) -> None:
        """Let pytest-benchmark show it, too."""

    def checking(self, node: Any) -> AbstractContextManager[None]:
        """Know that a check of an item goes on."""

    def end(self, node: Any, outcome: str, text: str) -> None:
        """Give the test its outcome: ``pass``, ``warn``, ``fail``, ``skip`` or ``xfail``."""


class Portability:
    """The ``portability`` fixture of one item.

    Args:
        host: the plugin.
        node: the pytest item.
        name: of the model, unless the test gives another.
        marker: the portability marker's arguments.
        item: what to build for.
    """

    def __init__(
        self, host: Host, node: Any, *, name: str, marker: Mapping[str, Any], item: Item
    ) -> None:
        self._host = host
        self._node = node
        self._name = name
        self._marker = marker
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
        with self._host.checking(self._node):
            try:
                ask = self._ask(
                    name=self._name if name is None else _line("name", name),
                    model=self._located(model),
                    inputs=inputs,
                    metric=metric,
                    reference=reference,
                    config={str(k): str(v) for k, v in _mapping("config", config).items()},
                    profile=_profile(profile),
                    options=_mapping("options", options),
                    items=_items(items, self._item.batch),
                    unit=_line("unit", unit),
                )
            except PortabilityError as exc:
                wrong = str(exc)
            else:
                return self._checked(ask)
            # Outside the handler, so that pytest shows the text and not a second traceback.
            self._host.end(self._node, "fail", wrong)
        raise UsageError(wrong)

    def _ask(self, *, options: Mapping[str, Any], **given: Any) -> Ask:
        """What the test asks for, with every setting and what hooks say."""
        host = self._host
        return Ask(
            **given,
            options=run.options_for(self._item, options, host.registered),
            tolerance=self._on_target("tolerance"),
            parity=self._on_target("parity"),
            seconds=host.setting("seconds", self._marker).value,
            repeats=host.setting("repeats").value,
            time_limit_s=host.setting("time_limit").value,
            environment=run.checked_environment(host.environment(self._node)),
            by_value=[self._node.module, *host.modules],
        )

    def _checked(self, ask: Ask) -> Result:
        """The flow, its entry in the report, and the test's outcome."""
        __tracebackhide__ = True
        result = self._measured(ask)
        entry = Entry(
            nodeid=self._node.nodeid,
            key=result.key,
            comparison=result.comparison,
            causes=result.causes,
            measurement=result.measurement,
            again=self._host.again(self._node.nodeid),
        )
        outcome, text = self._outcome(entry, result.log)
        self._host.keep(self._node, replace(entry, outcome=outcome))
        self._host.benchmarked(self._node, entry)
        self._host.end(self._node, outcome, text)
        return result

    def _measured(self, ask: Ask) -> Result:
        """The flow, with what only the project knows; what cannot be used is an error's text."""
        try:
            self._host.claims.claim(ask.key(self._item), self._node.nodeid)
            item, waiting = self._item, self._host.progress
            with device_lock.held(item.target, waiting, item.runtime.name) as device:
                result = self._host.pipeline.check(replace(item, target=device), ask)
            if verdicts.POLICY[result.comparison.verdict].item in {"pass", "skip"}:
                return result
        except PortabilityError as exc:
            return Result(key=ask.key(self._item), comparison=compare.error(str(exc)))
        try:
            added = self._host.causes(self._node, result.comparison)
            return replace(result, causes=run.added_causes(added, result.causes))
        except Exception as exc:  # noqa: BLE001 - a conftest's mistake must not lose what was found
            comparison, what = result.comparison, error_text(exc)
            said = f"hook pytest_portability_causes could not be used: {what}"
            warnings = (*comparison.warnings, said)
            return replace(result, comparison=replace(comparison, warnings=warnings))

    def _outcome(self, entry: Entry, log: str) -> tuple[str, str]:
        """What the verdict does to the test, and the text that says so."""
        comparison, host = entry.comparison, self._host
        # First: a runtime that cannot do this model has no known verdict to keep.
        if comparison.verdict is Verdict.SKIPPED:
            return "skip", comparison.reason
        text = terminal.failure(entry, log=log)
        nothing: Setting[Any] = Setting(None, "default")
        known = settings.on_target(host.setting("known", self._marker), self._meant, nothing).value
        if isinstance(known, settings.Known):
            if comparison.verdict is known.verdict:
                return "xfail", f"known {known.verdict.value}: {known.reason}"
            if comparison.verdict is Verdict.MISSING and host.updates is not None:
                return "pass", ""  # what is recorded now is what later runs are held against
            wanted = f"expects {known.verdict.value} here ({known.reason})"
            return "fail", f"known={{...}} on the marker {wanted}, and this is {text}"
        if host.updates is not None and host.updates.allows(comparison):
            return "pass", ""
        missing, inconclusive = host.setting("missing"), host.setting("inconclusive")
        outcome = verdicts.outcome(
            comparison.verdict, missing=missing.value, inconclusive=inconclusive.value
        )
        return outcome, text

    def _meant(self, pattern: str) -> bool:
        return targets.matches(self._item.target, pattern)

    def _on_target(self, name: str) -> Setting[Any]:
        asked, general = self._host.setting(name, self._marker), self._host.setting(name)
        return settings.on_target(asked, self._meant, general)

    def _located(self, model: Any) -> Any:
        """A path from the test's own directory, else from the root directory."""
        if not isinstance(model, (str, Path)):
            return model
        beside = self._node.path.parent / model
        in_root = self._host.root / model
        return in_root if in_root.exists() and not beside.exists() else beside


def _mapping(what: str, value: Any) -> Mapping[Any, Any]:
    if value is not None and not isinstance(value, Mapping):
        msg = f"{what}= of portability.check is {value!r}; expected a mapping"
        raise UsageError(msg)
    return value or {}


def _profile(value: Any) -> dict[str, int]:
    named = {name: _whole(size) for name, size in _mapping("profile", value).items()}
    for name, size in named.items():
        spelt = isinstance(name, str) and name.isidentifier() and not name[-1].isdigit()
        if not spelt or size is None or not 1 <= size < MOST_SIZE:
            msg = (
                f"profile= of portability.check has {name!r}: {value[name]!r}; expected the name "
                "of a dimension, without a digit at its end, and its size, a whole number from 1 on"
            )
            raise UsageError(msg)
    return {name: size for name, size in named.items() if size is not None}


def _whole(value: Any) -> int | None:
    """A whole number of any library; None for everything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _items(value: Any, batch: int) -> float:
    if value is None:
        return batch
    try:
        items = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        items = math.nan
    if not 0 < items < math.inf:
        msg = f"items= of portability.check is {value!r}; expected a finite number above 0"
        raise UsageError(msg)
    return items


def _line(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        msg = f"{what}= of portability.check is {value!r}; expected a line of text"
        raise UsageError(msg)
    return value
