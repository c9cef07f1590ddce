"""The flow for one item, in real child processes, on the fake runtime."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from runtimes.fake import FakeRuntime

from pytest_portability import divergence, pipeline, records, runtimes, subject, targets
from pytest_portability.errors import BuildError
from pytest_portability.pipeline import Ask, Item, Pipeline, Result
from pytest_portability.servers import Servers
from pytest_portability.settings import Setting
from pytest_portability.verdicts import Verdict

pytest.importorskip("onnxruntime", reason="the reference runs on it")


def inputs(batch: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return {"x": rng.standard_normal((batch, 4, onnx_models.WIDTH), dtype=np.float32)}


class Bench:
    """A pipeline on a directory of baselines, and what it said on the way."""

    def __init__(self, servers: Servers, baselines: Path) -> None:
        self._servers = servers
        self.baselines = baselines
        self.said: list[str] = []
        self.pipeline = self.another()

    def another(self, **options: Any) -> Pipeline:
        return Pipeline(self._servers, self.baselines, progress=self.said.append, **options)

    def check(self, runtime: FakeRuntime, batch: int = 2, **changes: Any) -> Result:
        (target,) = targets.merge([targets.cpu_device(runtimes=(runtime.name,), handle="cpu")])
        item = Item(target=target, runtime=runtime, precision="native", batch=batch)
        on: Pipeline = changes.pop("on", self.pipeline)
        return on.check(item, replace(ASK, items=batch, **changes))

    def record(self, result: Result) -> None:
        assert result.record is not None
        key = result.key
        records.write(records.path_of(self.baselines, key.model, key.target), {key: result.record})


ASK = Ask(
    name="mlp",
    model=onnx_models.mlp(),
    inputs=inputs,
    metric=None,
    reference=None,
    config={},
    profile={},
    options={},
    items=2,
    unit="samples",
    # No loss and no error is judged here: what counts is which steps are taken.
    tolerance=Setting(0.99, "marker"),
    parity=Setting(None, "default"),
    seconds=0.05,
    repeats=6,
    time_limit_s=60,
    environment={},
    by_value=[sys.modules[__name__]],
)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as some:
        yield some


@pytest.fixture
def bench(servers: Servers, tmp_path: Path) -> Bench:
    return Bench(servers, tmp_path)


def _without_end() -> Any:
    """The model, in whose child a reference would take for ever."""
    subject.reference = lambda *_args: time.sleep(600)  # type: ignore[assignment]
    return onnx_models.mlp()


def repeats(result: Result) -> int:
    return len(result.measurement.repeats) if result.measurement else 0


def test_a_clear_check_takes_two_processes_and_recording_four(bench: Bench) -> None:
    first = bench.check(FakeRuntime(), on=bench.another(recording=True))
    assert (first.comparison.verdict, repeats(first)) == (Verdict.MISSING, 4)
    bench.record(first)
    second = bench.check(FakeRuntime())
    assert second.comparison.verdict in (Verdict.OK, Verdict.INCONCLUSIVE)
    assert 2 <= repeats(second) <= ASK.repeats


def test_an_unfaithful_build_is_told_where_it_diverges(bench: Bench) -> None:
    wrong = FakeRuntime(spoils="a0")
    (cause,) = bench.check(wrong).causes
    assert cause.kind == "unexplained"
    assert cause.summary.startswith("first to diverge of 6 nodes: Add (output 'a0': ")
    assert "mlp" in "".join(s for s in bench.said if "first node that diverges" in s)
    bench.record(bench.check(FakeRuntime()))
    first, *_ = bench.check(wrong).causes
    assert "first to diverge of 6 nodes: Add" in (first.summary, *first.evidence)[0]


def test_nothing_inside_a_given_reference_is_known(bench: Bench) -> None:
    result = bench.check(FakeRuntime(), reference=[np.zeros((2, 4, onnx_models.WIDTH), np.float32)])
    assert result.comparison.verdict is Verdict.PARITY
    assert not any("diverge" in text for text in bench.said)


def test_that_the_search_failed_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_args: object) -> str:
        msg = "no such cut"
        raise BuildError(msg)

    monkeypatch.setattr(divergence, "first", refuses)
    (cause,) = bench.check(FakeRuntime(spoils="a0")).causes
    assert cause.summary == "where it diverges could not be told: no such cut"


def test_a_reference_that_takes_too_long_is_said_to(bench: Bench) -> None:
    result = bench.check(FakeRuntime(), model=_without_end, time_limit_s=6)
    (note,) = (n for n in result.comparison.warnings if n.startswith("no reference, so"))
    assert "no answer within the time limit of 6 s while computing its reference" in note
    assert note.endswith("give reference=")


@pytest.mark.parametrize(
    ("untraced", "why"),
    [
        ("dies", "the child was killed by SIGSEGV"),
        ("hangs", "no answer within the time limit of 6 s"),
    ],
)
def test_a_profiler_that_dies_does_not_take_the_figures_with_it(
    bench: Bench, untraced: str, why: str
) -> None:
    result = bench.check(FakeRuntime(untraced=untraced), time_limit_s=6)
    assert result.comparison.verdict is Verdict.MISSING
    assert result.record is not None
    assert result.record.path.evidence == "none"
    (caveat,) = result.record.path.caveats
    assert caveat.startswith(
        f"the kernel path could not be taken: {why} while taking the kernel path"
    )
    assert caveat in result.comparison.warnings


@pytest.mark.skipif(targets.usable_cores() < 2, reason="a yardstick on two threads needs two cores")
def test_a_check_has_the_yardstick_of_the_record(bench: Bench) -> None:
    """However many threads its own build keeps busy: other work would be no common measure."""
    first = bench.check(FakeRuntime())
    assert first.record is not None
    figures = first.record.figures
    assert not figures.yardstick.startswith("2x")
    twice = replace(figures, yardstick=f"2x{figures.yardstick}")
    first_on_two = replace(first.record, figures=twice)
    records.write(
        records.path_of(bench.baselines, "mlp", first.key.target), {first.key: first_on_two}
    )
    second = bench.check(FakeRuntime())
    assert second.measurement is not None
    assert {r.yardstick for r in second.measurement.repeats} == {twice.yardstick}


def test_only_the_first_process_takes_kernel_path_and_metric(bench: Bench) -> None:
    result = bench.check(FakeRuntime(), metric=lambda _predict: 0.5)
    assert result.measurement is not None
    assert [r.path is not None for r in result.measurement.repeats] == [True, False]
    assert result.record is not None
    assert result.record.parity.metrics == {"metric": 0.5}


def test_a_batch_that_does_not_fit_is_halved_until_it_does(bench: Bench) -> None:
    """Its speed is that of the batch that ran, and it is never called the asked one's."""
    result = bench.check(FakeRuntime(fits=2), batch=8)
    assert result.comparison.verdict is Verdict.UNFIT
    assert result.comparison.reason == "batch 8 does not fit: the largest that does is 2"
    assert result.record is not None
    assert result.record.figures.batch_effective == 2
    assert result.record.figures.items == 2
    assert result.outputs["y"].shape[0] == 2


def test_ready_arrays_are_cut_to_the_batch_that_fits(bench: Bench) -> None:
    ready = inputs(8, np.random.default_rng(0))
    result = bench.check(FakeRuntime(fits=4), batch=8, inputs=ready)
    assert result.outputs["y"].shape[0] == 4


def hungry(batch: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Inputs that only half the batch has room for."""
    if batch > 2:
        raise MemoryError
    return inputs(batch, rng)


def test_inputs_that_do_not_fit_halve_the_batch_as_well(bench: Bench) -> None:
    result = bench.check(FakeRuntime(), batch=4, inputs=hungry)
    assert result.comparison.reason == "batch 4 does not fit: the largest that does is 2"


def test_where_not_even_one_sample_fits_nothing_was_measured(bench: Bench) -> None:
    result = bench.check(FakeRuntime(fits=0), batch=2)
    assert result.comparison.verdict is Verdict.UNFIT
    assert result.comparison.reason.startswith("not even a batch of 1 fits into memory: ")
    assert result.record is None
    assert result.measurement is None


def test_a_slow_build_is_measured_in_one_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SLOW_BUILD_S", 0.0)
    assert repeats(bench.check(FakeRuntime(), on=bench.another(recording=True))) == 1


def test_lost_parity_needs_no_second_process(bench: Bench) -> None:
    result = bench.check(FakeRuntime(not_finite=True))
    assert (result.comparison.verdict, repeats(result)) == (Verdict.PARITY, 1)


def test_what_goes_wrong_in_a_child_is_the_items_verdict(bench: Bench) -> None:
    result = bench.check(FakeRuntime(fails="no such kernel"))
    assert result.comparison.verdict is Verdict.ERROR
    assert result.comparison.reason == "no such kernel"
    assert bench.check(FakeRuntime()).comparison.verdict is Verdict.MISSING


class Undecided(FakeRuntime):
    """A runtime that does not know what it supports."""

    def supports(self, precision: str, platform: str) -> str:
        """Nothing comes of it."""
        msg = f"{precision} on {platform}?"
        raise LookupError(msg)


def test_a_runtime_that_cannot_say_what_it_supports_is_named(bench: Bench) -> None:
    found = bench.check(Undecided()).comparison
    assert found.verdict is Verdict.ERROR
    assert found.reason == "supports() of the runtime 'fake' raised LookupError: native on cpu?"


def test_items_that_differ_in_the_build_alone_share_model_and_reference(bench: Bench) -> None:
    for repeated in (1, 2):
        bench.check(FakeRuntime(repeats=repeated))
    read = [text for text in bench.said if "reading the model" in text]
    assert read == ["mlp: reading the model and computing its reference"]


def test_a_file_that_was_written_anew_is_another_model(bench: Bench, tmp_path: Path) -> None:
    """A test that exports to one name, once for each of its parameters."""
    path = tmp_path / "exported.onnx"
    onnx.save(onnx_models.mlp(), path)
    first = bench.check(FakeRuntime(), model=path)
    onnx.save(onnx_models.mlp(opset=21), path)
    second = bench.check(FakeRuntime(), model=path)
    assert first.record is not None
    assert second.record is not None
    assert first.record.model.opset == {"": onnx_models.mlp().opset_import[0].version}
    assert second.record.model.opset == {"": 21}
    assert second.comparison.verdict is Verdict.MISSING


def _names_what_came(predict: Any) -> dict[str, float]:
    """A metric, called when memory was taken: which modules of NumPy or ours are new since."""
    del predict
    new = sys.modules.keys() - vars(sys)["modules_before"]
    return {name: 1.0 for name in new if name.startswith(("numpy", "pytest_portability", "onnx"))}


def _notes_what_is_there() -> Any:
    """A model, made at the beginning of the window in which memory counts."""
    vars(sys)["modules_before"] = set(sys.modules)  # what travels by value shares no globals
    return onnx_models.mlp()


@pytest.mark.parametrize("name", ["onnxruntime.cpu", "openvino"])
def test_nothing_is_imported_while_memory_counts(bench: Bench, name: str) -> None:
    """Without .pyc files 7 MiB were compiled there: the record of another image was exceeded."""
    pytest.importorskip(name.partition(".")[0])
    (target,) = targets.merge([targets.cpu_device(runtimes=(name,), handle="CPU")])
    item = Item(target=target, runtime=runtimes.load(name), precision="native", batch=2)
    ask = replace(ASK, model=_notes_what_is_there, metric=_names_what_came)
    result = bench.pipeline.check(item, ask)
    assert result.record is not None, result.comparison.reason
    assert result.record.parity.metrics == {}


def test_progress_tells_item_and_repeat_and_ends_empty(bench: Bench) -> None:
    result = bench.check(FakeRuntime())
    assert bench.said[-1] == ""
    row = f"{result.key.target}-fake-native-b2"
    assert [text for text in bench.said if row in text][:2] == [
        f"mlp {row}: repeat 1",
        f"mlp {row}: repeat 2",
    ]


def test_without_a_record_the_closest_is_shown(bench: Bench) -> None:
    bench.record(bench.check(FakeRuntime(), batch=2))
    result = bench.check(FakeRuntime(), batch=4)
    assert result.comparison.verdict is Verdict.MISSING
    assert result.comparison.closest is not None
    assert "closest (the same architecture" in result.comparison.reason


def test_a_record_of_the_same_weights_under_another_name_is_said(bench: Bench) -> None:
    """A test that was renamed has lost its records."""
    bench.record(bench.check(FakeRuntime()))
    renamed = bench.check(FakeRuntime(), name="other")
    assert renamed.comparison.reason.endswith(
        "and none that is close; 'mlp' has the same weights: if the test was renamed, name='mlp' "
        "finds its record"
    )


def test_a_broken_record_of_another_model_does_not_hide_the_closest(bench: Bench) -> None:
    broken = bench.baselines / "other" / "cpu.toml"
    broken.parent.mkdir()
    broken.write_text("schema = [")
    bench.record(bench.check(FakeRuntime(), batch=2))
    assert bench.check(FakeRuntime(), batch=4).comparison.closest is not None
