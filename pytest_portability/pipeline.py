"""The whole flow for one item: build, measure, check parity, record, compare, attribute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_portability import (
    attribute,
    compare,
    divergence,
    parity,
    recording,
    records,
    subject,
    targets,
    worker,
    yardstick,
)
from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    PortabilityError,
    Unsupported,
    UsageError,
)
from pytest_portability.models import Arrays
from pytest_portability.outputs import Differences, error_rel
from pytest_portability.recent import Recent, delete
from pytest_portability.records import Key, Record
from pytest_portability.runtimes import Runtime
from pytest_portability.samples import Measurement, Sampling
from pytest_portability.servers import Servers
from pytest_portability.settings import Setting
from pytest_portability.subject import Source, Subject
from pytest_portability.targets import Target
from pytest_portability.verdicts import Verdict
from pytest_portability.versions import delta
from pytest_portability.versions.closest import beside
from pytest_portability.versions.source import Version
from pytest_portability.worker import Job, Outcome
from pytest_portability.yardstick import threads_of

DEFAULT_OPSET = 20
"""Op-set of torch modules exported to ONNX: Gelu is one op from 20 on, Attention from 23 on."""

NATIVE = {"onnx": ["onnxruntime.*"], "torch": ["torch", "torch.compile"]}
"""Kind of model → patterns of the runtimes that build it without conversion."""

MOST_KEPT = 16
"""Models at a batch size, and conversions, that are kept for the next items of a run."""

REPEATS = 2
RECORDING_REPEATS = 4
SLOW_BUILD_S = 30.0
"""A build that takes longer may be measured in one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to build: target × runtime × precision × batch; the test brings the model.

    Attributes:
        named: whether the test named the runtime, so that a torch module is exported for it.
    """

    target: Target
    runtime: Runtime
    precision: str
    batch: int
    named: bool = False

    @property
    def id(self) -> str:
        """The item's parameter id: stable and readable."""
        return f"{self.target.id}-{self.runtime.name}-{self.precision}-b{self.batch}"

    @property
    def markers(self) -> tuple[str, ...]:
        """Selection markers: vendor, platform and architecture of the target, runtime family."""
        return tuple(dict.fromkeys((*targets.markers(self.target), self.runtime.family)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a test asks of ``check``, every setting resolved for the item's target.

    Attributes:
        model: path, ``onnx.ModelProto``, ``torch.nn.Module`` or a factory of one of these.
        inputs: callable ``(batch, rng)`` or ready arrays.
        options: the user's options for the item's runtime.
        items: what one batch counts as, in ``unit``.
        parity: tolerance of the relative L2 error, None by effective precision.
        repeats: most repeats while the comparison is undecided.
        environment: variables the measuring processes get.
        by_value: modules that the child cannot import.
    """

    name: str
    model: Any
    inputs: Any
    metric: worker.Metric | None
    reference: Any
    config: Mapping[str, str]
    profile: Mapping[str, int]
    options: Mapping[str, Any]
    items: float
    unit: str
    tolerance: Setting[float]
    parity: Setting[float | None]
    seconds: float
    repeats: int
    time_limit_s: float
    environment: Mapping[str, str]
    by_value: Sequence[ModuleType] = ()

    def key(self, item: Item) -> Key:
        """The record's key."""
        return Key(
            model=self.name,
            target=item.target.id,
            runtime=item.runtime.name,
            precision=item.precision,
            batch=item.batch,
            profile=tuple(sorted(self.profile.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``portability.check`` returns.

    Attributes:
        causes: empty where nothing needs an explanation.
        measurement: raw samples, None where nothing was measured.
        outputs: of the timed run, by name.
        log: the last words of a child that failed.
    """

    key: Key
    comparison: Comparison
    causes: tuple[Cause, ...] = ()
    measurement: Measurement | None = None
    outputs: Arrays = field(default_factory=dict)
    log: str = ""

    @property
    def record(self) -> Record | None:
        """What was measured now."""
        return self.comparison.record

    @property
    def baseline(self) -> Record | None:
        """The record it was held against."""
        return self.comparison.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A subject at the batch that fits, and the file to build it from."""

    source: Source
    subject: Subject
    batch: int
    path: Path | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Computed:
    """The outputs of the timed run, held against the reference and against a second run."""

    reference: parity.Reference | None
    trouble: str
    again: Differences
    found: parity.Parity

    @classmethod
    def of(cls, what: Subject, outcome: Outcome) -> _Computed:
        reference = None
        if (right := what.reference) is not None:
            reference = parity.Reference(
                name=right.name,
                differences=error_rel(outcome.outputs, right.outputs),
                floors_rel=right.floors_rel,
            )
        again = error_rel(outcome.again, outcome.outputs)
        found = parity.measured(outcome.outputs, what.inputs, reference, outcome.metrics, again)
        return cls(reference=reference, trouble=what.trouble, again=again, found=found)

    def judge(
        self, record: Record, baseline: Record | None, tolerance: float | None
    ) -> parity.ParityVerdict:
        then = baseline.computed if baseline else None
        limits = parity.Limits(parity=tolerance)
        judged = parity.judge(record.computed, then, self.reference, self.again, limits)
        return replace(judged, notes=(self.trouble, *judged.notes)) if self.trouble else judged


class Pipeline:
    """Runs the flow, and keeps what the items of one run share: servers, subjects, conversions.

    Args:
        servers: where children run.
        baselines: directory of the records.
        against: what is held against instead; a target of it stands in for any other.
        recording: whether this run records, which takes more repeats.
        commit: git commit of the project, empty outside a repository.
        progress: told what is going on, in a few words; an empty text when it is over.
    """

    def __init__(
        self,
        servers: Servers,
        baselines: Path,
        *,
        against: Version | None = None,
        recording: bool = False,
        commit: str = "",
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._servers = servers
        self._baselines = baselines
        self._against = against
        self._recording = recording
        self._commit = commit
        self._progress = progress
        self._subjects: Recent[tuple[object, ...], Subject] = Recent(MOST_KEPT)
        self._numbers = itertools.count()
        self._prepared: Recent[tuple[object, ...], tuple[Path, Mapping[str, str]]]
        self._prepared = Recent(MOST_KEPT, lambda made: delete(made[0]))
        self._kept: Recent[Path, Path] = Recent(2 * MOST_KEPT, delete)

    def check(self, item: Item, ask: Ask) -> Result:
        """The flow for one item. What goes wrong on the way is its verdict, not an exception.

        Raises:
            RecordError: the baseline cannot be read.
        """
        key = ask.key(item)
        baseline = self._baseline(key)
        try:
            result = self._run(item, ask, baseline)
        except Unsupported as exc:
            return Result(key=key, comparison=compare.error(str(exc), skipped=True))
        except DoesNotFit as exc:
            unfit = compare.unfit(f"not even a batch of 1 fits into memory: {exc}", baseline)
            return Result(key=key, comparison=unfit, log=exc.log)
        except PortabilityError as exc:
            return Result(key=key, comparison=compare.error(str(exc)), log=exc.log)
        finally:
            self._progress("")
        return result

    def _baseline(self, key: Key) -> Record | None:
        if self._against is not None:
            return delta.counterpart(self._against, key)
        path = records.path_of(self._baselines, key.model, key.target)
        return records.read(path).get(key) if path.exists() else None

    def _run(self, item: Item, ask: Ask, baseline: Record | None) -> Result:
        built = self._describe(item, ask, item.batch)
        then = baseline.figures.yardstick if baseline else ""
        built, first = self._measure(item, ask, built, repeat=0, known=then)
        then = then or first.repeat.yardstick
        log, outcomes = self._servers.log, [first]
        computed = _Computed.of(built.subject, first)
        while True:
            measurement = _measurement(item, ask, built, outcomes)
            record = self._record(item, ask, built, measurement, computed.found)
            comparison = compare.decide(
                record,
                baseline,
                measurement=measurement,
                parity=computed.judge(record, baseline, ask.parity.value),
                allowed=compare.Allowed(loss=ask.tolerance.value, source=ask.tolerance.source),
            )
            if not self._goes_on(ask, comparison, outcomes):
                break
            more = self._measure(item, ask, built, repeat=len(outcomes), known=then)
            outcomes.append(more[1])
        causes: tuple[Cause, ...] = ()
        if comparison.verdict is Verdict.MISSING:
            everything, _ = records.read_all(self._baselines)
            comparison, causes = beside(comparison, everything)
        else:
            where = self._diverges(item, ask, built, comparison)
            said = "\n".join((log, *measurement.observed.notes))
            causes = attribute.attribute(comparison, log=said, diverges=where)
        return Result(
            key=record.key,
            comparison=comparison,
            causes=causes,
            measurement=measurement,
            outputs=first.outputs,
        )

    def _diverges(self, item: Item, ask: Ask, built: _Built, comparison: Comparison) -> str:
        """Where inside the model the build leaves its reference; empty if it does not."""
        judged = comparison.parity
        if judged is None or judged.faithful is not False or ask.reference is not None:
            return ""  # nor is anything inside a reference that the test gave known
        if comparison.verdict is not Verdict.PARITY:
            return ""
        self._progress(f"{ask.name} {item.id}: looking for the first node that diverges")
        job = self._job(item, ask, built, first=False)
        try:
            weights = built.subject.facts.weights
            return str(self._call(item, ask, divergence.first, job, judged.tolerance, weights))
        except PortabilityError as exc:
            return f"where it diverges could not be told: {str(exc).partition(chr(10))[0]}"

    def _record(
        self, item: Item, ask: Ask, built: _Built, measurement: Measurement, found: parity.Parity
    ) -> Record:
        return recording.record(
            ask.key(item),
            item.target,
            recording.version(built.subject.facts, built.facts, ask.config),
            measurement,
            found,
            environment=self._servers.environment(self._environment(item, ask)),
            asked=ask.environment,
            commit=self._commit,
        )

    def _describe(self, item: Item, ask: Ask, batch: int) -> _Built:
        """Read the model, make inputs and reference, convert the model if the runtime needs it."""
        source = self._source(ask)
        at = (source, item.batch, batch)
        if at not in self._subjects:
            self._progress(f"{ask.name}: reading the model and computing its reference")
            args = (source, item.batch, batch)
            try:
                self._subjects[at] = self._call(item, ask, subject.describe, *args)
            except DoesNotFit:
                if batch == 1:
                    raise
                return self._describe(item, ask, batch // 2)
            if died := self._servers.unfinished:
                trouble = subject.untold(died)
                self._subjects[at] = replace(self._subjects[at], trouble=trouble)
        built = _Built(source=source, subject=self._subjects[at], batch=batch)
        kinds, kind = item.runtime.kinds, built.subject.facts.kind
        if reason := _refusal(item):
            raise Unsupported(reason)
        exports = kind == "torch" and "onnx" in kinds and item.named
        if kind not in kinds and not exports:
            msg = (
                f"{item.runtime.name} builds {' and '.join(kinds)} models and this one is {kind}; "
                f"runtimes={NATIVE.get(kind, [])!r} on the marker leaves this item out"
            )
            raise Unsupported(msg)
        if "opset" in ask.options and kind != "torch":
            msg = "option 'opset' is for torch modules exported to ONNX; this model is an ONNX file"
            raise UsageError(msg)
        return self._convert(item, ask, built)

    def _convert(self, item: Item, ask: Ask, built: _Built) -> _Built:
        kind = built.subject.facts.kind
        precision = item.precision if item.precision in item.runtime.converted else "native"
        if kind in item.runtime.kinds and precision == "native":
            return built
        opset = _opset(ask)
        at = (built.source, built.batch, precision, opset)
        if at not in self._prepared:
            self._progress(f"{ask.name}: converting the model for {item.runtime.name}")
            out = self._servers.directory / f"converted-{next(self._numbers)}.onnx"
            args = (built.source, built.subject.inputs, precision, out, opset)
            try:
                facts = self._call(item, ask, worker.prepare, *args)
            except DoesNotFit as exc:
                # Not the build: the host itself, while it converted the model.
                msg = f"this host has too little memory to convert the model: {exc}"
                raise BuildError(msg) from exc
            self._prepared[at] = (out, facts)
        path, facts = self._prepared[at]
        return replace(built, path=path, facts=facts)

    def _measure(
        self, item: Item, ask: Ask, built: _Built, *, repeat: int, known: str
    ) -> tuple[_Built, Outcome]:
        """One repeat in a fresh child; a first one that does not fit tries half the batch.

        ``known`` is the yardstick of the baseline or the first repeat, empty if there is neither.
        """
        while True:
            self._progress(f"{ask.name} {item.id}: repeat {repeat + 1}")
            job = self._job(item, ask, built, first=repeat == 0)
            job = replace(job, yardstick_threads=threads_of(known) if known else 0)
            try:
                outcome: Outcome = self._call(item, ask, worker.measure, job)
            except DoesNotFit as exc:
                if repeat:
                    msg = f"repeat {repeat + 1} ran out of memory, the one before did not: {exc}"
                    raise BuildError(msg) from exc
                if built.batch == 1:
                    raise
                built = self._describe(item, ask, built.batch // 2)
                continue
            if died := self._servers.unfinished:
                path = worker.no_path(job, died)
                outcome = replace(outcome, repeat=replace(outcome.repeat, path=path))
            return built, outcome

    def _job(self, item: Item, ask: Ask, built: _Built, *, first: bool) -> Job:
        target = item.target
        return Job(
            source=built.source,
            path=built.path,
            runtime=item.runtime,
            handle=target.handles.get(item.runtime.name, ""),
            platform=target.platform,
            address=target.address,
            precision=item.precision,
            options={k: v for k, v in ask.options.items() if k != "opset"},
            inputs=built.subject.inputs,
            sampling=Sampling(seconds=ask.seconds, trace=first),
            cache_dir=str(self._servers.directory / "cache"),
            yardstick="" if target.platform == "cpu" else target.handles.get("torch", ""),
            metric=ask.metric if first else None,
        )

    def _environment(self, item: Item, ask: Ask) -> dict[str, str]:
        """Defaults of a child: the runtime's win over the yardstick's, the hooks' over both."""
        return {**yardstick.ENVIRONMENT, **item.runtime.environment, **ask.environment}

    def _call(self, item: Item, ask: Ask, function: Callable[..., Any], *args: object) -> Any:
        return self._servers.call(
            function,
            *args,
            environment=self._environment(item, ask),
            preload=_preload(item.runtime),
            time_limit_s=ask.time_limit_s,
            by_value=ask.by_value,
        )

    def _source(self, ask: Ask) -> Source:
        """Pickle the model and its inputs once; children read the files when they want to."""
        model, inputs = (
            self._servers.keep(part, ask.by_value)
            for part in (ask.model, (ask.inputs, ask.reference))
        )
        self._kept[model], self._kept[inputs] = model, inputs
        return Source(model=model, inputs=inputs, name=ask.name, written=subject.written(ask.model))

    def _goes_on(self, ask: Ask, comparison: Comparison, outcomes: Sequence[Outcome]) -> bool:
        """Whether another repeat is worth its time."""
        done = len(outcomes)
        judged = {Verdict.PARITY, Verdict.INTERFACE, Verdict.PLACEMENT}
        if comparison.verdict in judged and not self._recording:
            return False  # what is recorded on purpose is measured as thoroughly as anything
        if outcomes[0].repeat.build_s > SLOW_BUILD_S:
            return False
        least = RECORDING_REPEATS if self._recording else REPEATS
        if done < min(least, ask.repeats):
            return True
        return done < ask.repeats and compare.undecided(comparison)


def _preload(runtime: Runtime) -> tuple[str, ...]:
    """What a server imports once; an import in the child would count as the build's memory."""
    formats = [kind for kind in runtime.kinds if kind == "onnx"]
    return ("numpy", "numpy.ma", "pytest_portability.worker", *formats, *runtime.packages)


def _refusal(item: Item) -> str:
    """Why the runtime cannot do the item's precision on its target; empty if it can."""
    try:
        return item.runtime.supports(item.precision, item.target.platform)
    except Exception as exc:
        msg = f"supports() of the runtime {item.runtime.name!r} raised {type(exc).__name__}: {exc}"
        raise UsageError(msg) from exc


def _opset(ask: Ask) -> int:
    opset = ask.options.get("opset", DEFAULT_OPSET)
    if isinstance(opset, bool) or not isinstance(opset, int) or opset < 1:
        msg = f"option 'opset' is {opset!r}; expected a whole number, such as {DEFAULT_OPSET}"
        raise UsageError(msg)
    return opset


def _measurement(item: Item, ask: Ask, built: _Built, outcomes: Sequence[Outcome]) -> Measurement:
    share = built.batch / item.batch
    return Measurement(
        repeats=tuple(outcome.repeat for outcome in outcomes),
        batch=item.batch,
        batch_effective=built.batch,
        items=ask.items * share,
        unit=ask.unit,
    )
