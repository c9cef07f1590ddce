"""What a child process does with a model, called here without the child."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx_models
import pytest
from onnx import helper
from runtimes.fake import FakeRuntime

from pytest_portability import models, subject, worker, yardstick
from pytest_portability.errors import BuildError, DoesNotFit, InputsError, ModelError, Unsupported
from pytest_portability.models import Arrays
from pytest_portability.outputs import error_rel
from pytest_portability.samples import Sampling
from pytest_portability.subject import Reference, Source, Subject
from pytest_portability.worker import Job, Outcome

pytest.importorskip("onnxruntime", reason="the reference runs on it")

SAMPLING = Sampling(seconds=0.01, window_s=0.001, yardstick_s=0.001, warmup_s=0.01)


def inputs(batch: int, rng: np.random.Generator) -> list[Any]:
    """What a test gives: batches of the model's only input."""
    return [rng.standard_normal((batch, 4, onnx_models.WIDTH), dtype=np.float32)]


class Workbench:
    """Files of pickles, as the parent makes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def source(self, given: Any = inputs, reference: Any = None) -> Source:
        """The model and what the test gave with it."""
        model, other = self._folder / "model", self._folder / "inputs"
        model.write_bytes(cloudpickle.dumps(onnx_models.mlp()))
        other.write_bytes(cloudpickle.dumps((given, reference)))
        return Source(model=model, inputs=other, name="mlp")

    def describe(
        self, given: Any = inputs, reference: Any = None, *, batch: int = 2, fits: int = 2
    ) -> Subject:
        """The subject of that source."""
        return subject.describe(self.source(given, reference), batch, fits)

    def measure(
        self, runtime: FakeRuntime, metric: worker.Metric | None = None, *, platform: str = "cpu"
    ) -> Outcome:
        """One repeat."""
        job = Job(
            source=self.source(),
            path=None,
            runtime=runtime,
            handle="cpu",
            platform=platform,
            precision="native",
            options={},
            inputs={"x": inputs(2, np.random.default_rng(1))[0]},
            sampling=SAMPLING,
            cache_dir=str(self._folder),
            metric=metric,
        )
        return worker.measure(job)


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(tmp_path)


# --- describe ---------------------------------------------------------------------------------


def test_the_inputs_are_the_same_in_every_process_for_ever(bench: Workbench) -> None:
    """Records compare outputs for the same inputs, across machines and years."""
    one, two = bench.describe(), bench.describe()
    assert models.digest(one.inputs) == models.digest(two.inputs)
    assert one.inputs["x"][0, 0, 0] == pytest.approx(
        np.random.default_rng(subject.INPUT_SEED).standard_normal(1, dtype=np.float32)[0]
    )


def test_the_reference_is_the_model_itself_on_the_cpu(bench: Workbench) -> None:
    described = bench.describe()
    reference = right(described)
    assert reference.name == "onnxruntime.cpu in fp32 without optimiser"
    expected = onnx_models.mlp_expected(described.inputs["x"])
    assert np.allclose(reference.outputs["y"], expected, atol=1e-5)
    assert 0 < max(reference.floors_rel.values()) < 1e-5


def test_a_model_whose_reference_cannot_be_computed_is_measured_all_the_same(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that only the accelerator has: parity with the CPU is unknown, and said so."""

    def refuses(*_args: Any) -> Any:
        msg = "no kernel for MyOp"
        raise BuildError(msg)

    monkeypatch.setattr(subject, "_run", refuses)
    described = bench.describe()
    assert described.reference is None
    assert described.trouble == (
        "no reference, so parity with it is not known: no kernel for MyOp; give reference="
    )


@pytest.mark.parametrize("error", [RuntimeError("only leaf tensors"), ModelError("too new")])
def test_whatever_a_reference_raises_the_model_is_measured(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raises(*_args: Any) -> Any:
        raise error

    monkeypatch.setattr(subject, "reference", raises)
    described = bench.describe()
    assert described.reference is None
    assert str(error) in described.trouble


def test_flags_and_masks_among_the_inputs_make_no_floor() -> None:
    """A flag beside 0 is no flag any more, and a mask beyond the largest number is infinite."""
    shape: onnx_models.Dims = [8]
    nodes = [
        helper.make_node("Equal", ["flag", "zero"], ["off"]),
        helper.make_node("Where", ["off", "x", "other"], ["chosen"]),
        helper.make_node("Max", ["chosen", "mask"], ["y"]),
    ]
    weights = [
        onnx_models.constant("zero", np.array(0, np.float32)),
        onnx_models.constant("other", np.full(8, 5, np.float32)),
    ]
    proto = onnx_models.model(
        nodes, {"flag": shape, "x": shape, "mask": shape}, {"y": shape}, weights
    )
    inputs = {
        "flag": np.array([0, 1] * 4, np.float32),
        "x": np.random.default_rng(0).random(8, dtype=np.float32) + 1,
        "mask": np.full(8, np.finfo(np.float32).min),
    }
    floors = subject.reference(models.load(proto), inputs).floors_rel
    assert 0 < max(floors.values()) < 1e-6


def test_inputs_that_raise_are_an_error_that_shows_where(bench: Workbench) -> None:
    def broken(batch: int, rng: np.random.Generator) -> list[Any]:
        del rng
        return [np.zeros(batch)[99]]

    expected = r"inputs\(batch=2, rng\) raised IndexError: .*\(in broken, line "
    with pytest.raises(InputsError, match=expected):
        bench.describe(broken)


def test_ready_inputs_of_another_batch_are_an_error(bench: Workbench) -> None:
    with pytest.raises(InputsError, match="3"):
        bench.describe(inputs(3, np.random.default_rng(0)))


def test_a_callable_makes_the_batch_that_fits(bench: Workbench) -> None:
    assert bench.describe(batch=4, fits=2).inputs["x"].shape[0] == 2


def test_ready_inputs_are_cut_to_the_batch_that_fits(bench: Workbench) -> None:
    ready = inputs(4, np.random.default_rng(0))
    described = bench.describe(ready, batch=4, fits=2)
    assert np.array_equal(described.inputs["x"], ready[0][:2])
    assert right(described).outputs["y"].shape[0] == 2


def right(described: Subject) -> Reference:
    """The reference, which is there."""
    assert described.reference is not None
    return described.reference


def ready_reference(batch: int) -> Any:
    """Inputs of a batch and what the model makes of them."""
    given = inputs(batch, np.random.default_rng(0))
    return given, onnx_models.mlp_expected(given[0]).astype(np.float32)


@pytest.mark.parametrize(
    "form",
    [
        lambda y: {"y": y},
        lambda y: lambda _inputs: {"y": y},
        lambda y: [y],
        lambda y: y,
    ],
    ids=["mapping", "callable", "list", "array"],
)
def test_a_reference_of_the_test_is_held_against_the_models_outputs(
    bench: Workbench, form: Callable[[Any], Any]
) -> None:
    given, expected = ready_reference(2)
    reference = right(bench.describe(given, form(expected)))
    assert reference.name == "given by the test"
    assert not error_rel({"y": expected}, reference.outputs).problems


def test_a_ready_reference_is_cut_with_the_inputs(bench: Workbench) -> None:
    given, expected = ready_reference(4)
    described = bench.describe(given, {"y": expected}, batch=4, fits=2)
    assert right(described).outputs["y"].shape[0] == described.inputs["x"].shape[0]


def raises(error: Exception) -> Callable[..., Any]:
    """A function of the user that raises."""

    def f(*_args: object) -> Any:
        raise error

    return f


def test_out_of_memory_in_the_users_functions_does_not_fit(bench: Workbench) -> None:
    """It is no error of theirs."""
    unfit = raises(MemoryError("60 GiB"))
    for call in (
        lambda: bench.describe(unfit),
        lambda: bench.describe(reference=unfit),
        lambda: bench.measure(FakeRuntime(), unfit),
    ):
        with pytest.raises(DoesNotFit, match=r"raised MemoryError: 60 GiB \(in f, line "):
            call()


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (raises(KeyError("nope")), r"reference raised KeyError: 'nope' \(in f, line \d+\)"),
        (lambda _inputs: None, "reference= gives no outputs: None"),
        ({}, "reference= gives no outputs"),
        ([], "reference= gives no outputs"),
        ({"y": [[1.0, 2.0], [3.0]]}, "reference= output 'y' is no array: ValueError"),
    ],
    ids=["raises", "none", "empty mapping", "empty list", "ragged"],
)
def test_a_reference_that_cannot_be_used_says_why(
    bench: Workbench, reference: Any, text: str
) -> None:
    with pytest.raises(InputsError, match=text):
        bench.describe(reference=reference)


def missing(folder: Path) -> Path:
    """A pickle of something that lives in a module that does not exist."""
    path = folder / "missing"
    path.write_bytes(b"cno_such_module_here\nModel\n.")
    return path


def test_what_the_child_cannot_import_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    source = Source(model=missing(tmp_path), inputs=missing(tmp_path), name="mlp")
    expected = "cannot be read in the child process: No module named 'no_such_module_here'. Make"
    with pytest.raises(ModelError, match=expected):
        source.load()


# --- measure ----------------------------------------------------------------------------------


def test_a_repeat_brings_figures_outputs_and_facts(bench: Workbench) -> None:
    outcome = bench.measure(FakeRuntime())
    expected = onnx_models.mlp_expected(inputs(2, np.random.default_rng(1))[0])
    assert np.allclose(outcome.outputs["y"], expected, atol=1e-4)
    assert np.array_equal(outcome.again["y"], outcome.outputs["y"])
    assert len(outcome.repeat.windows) >= SAMPLING.min_windows
    assert outcome.repeat.observed.asked_provider == "FakeProvider"
    assert outcome.repeat.copy_bandwidth > 1e8
    assert outcome.repeat.path is not None
    assert outcome.metrics == {}


@pytest.mark.parametrize(
    ("family", "toolchain", "name"),
    [
        ("fake", {"driver": "5", "fake": "1.0"}, "fake 1.0"),
        ("fake", {"fake": "1.0", "fake unit provider": "1.8"}, "fake 1.0 1.8"),
        ("acme", {"fake": "1.0"}, "fake"),
    ],
    ids=["package", "plugin", "no entry"],
)
def test_a_yardstick_of_the_measured_runtime_tells_its_version(
    bench: Workbench,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    toolchain: dict[str, str],
    name: str,
) -> None:
    """After an update both sides of a comparison are another library's."""
    observed = FakeRuntime.observed

    def told(self: FakeRuntime, request: Any) -> Any:
        return replace(observed(self, request), toolchain=toolchain)

    monkeypatch.setattr(FakeRuntime, "observed", told)
    monkeypatch.setattr(yardstick, "NODE_SIZE", 8)
    outcome = bench.measure(FakeRuntime(family=family), platform="npu")
    assert outcome.repeat.yardstick == f"matmul-8-float32 {name}"


def test_a_repeat_can_be_sent_back(bench: Workbench) -> None:
    outcome = bench.measure(FakeRuntime())
    assert pickle.loads(pickle.dumps(outcome)).repeat == outcome.repeat


@pytest.mark.parametrize("form", [float, lambda value: {"metric": value}], ids=["number", "named"])
def test_the_task_metric_runs_with_the_measured_build(
    bench: Workbench, form: Callable[[float], float | Mapping[str, float]]
) -> None:
    """It may run other inputs, of any batch size."""

    def metric(predict: Callable[[Any], Arrays]) -> float | Mapping[str, float]:
        return form(float(len(predict(inputs(5, np.random.default_rng(2)))["y"])))

    assert bench.measure(FakeRuntime(), metric).metrics == {"metric": 5.0}


def test_a_metric_that_raises_is_an_error_that_shows_where(bench: Workbench) -> None:
    def broken(predict: object) -> float:
        del predict
        scores: dict[str, float] = {}
        return scores["accuracy"]

    expected = r"metric raised KeyError: 'accuracy' \(in broken, line "
    with pytest.raises(BuildError, match=expected):
        bench.measure(FakeRuntime(), broken)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"acc": float("nan")}, "metric 'acc' is nan; a task metric must be finite"),
        (np.float32("inf"), "metric 'metric' is inf; a task metric must be finite"),
        ({"acc": 10**400}, "metric 'acc' is too large for a float; a task metric must be finite"),
    ],
    ids=["nan", "inf", "huge"],
)
def test_a_metric_that_is_not_finite_is_an_error(bench: Workbench, value: Any, text: str) -> None:
    """A record of NaN would be equal to every other one."""
    with pytest.raises(BuildError, match=text):
        bench.measure(FakeRuntime(), lambda _predict: value)


@pytest.mark.parametrize(
    ("runtime", "error", "text"),
    [
        (FakeRuntime(fails="no such kernel"), BuildError, "no such kernel"),
        (FakeRuntime(fits=1), DoesNotFit, "out of memory"),
        (FakeRuntime(refuses={"native": "not today"}), Unsupported, "not today"),
    ],
    ids=["fails", "unfit", "unsupported"],
)
def test_what_a_runtime_refuses_comes_out_as_it_is(
    bench: Workbench, runtime: FakeRuntime, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        bench.measure(runtime)


@pytest.mark.parametrize("runtime", [FakeRuntime(), FakeRuntime(fits=1)], ids=["ends", "raises"])
def test_a_build_is_closed_however_the_repeat_ends(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime
) -> None:
    closed: list[object] = []
    make = FakeRuntime.build

    def watched(self: FakeRuntime, request: Any) -> Any:
        build = make(self, request)
        monkeypatch.setattr(build, "close", lambda: closed.append(build))
        return build

    monkeypatch.setattr(FakeRuntime, "build", watched)
    try:
        bench.measure(runtime)
    except DoesNotFit:
        assert runtime.fits == 1
    assert len(closed) == 1
