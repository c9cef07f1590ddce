"""One contract that every runtime passes, or is not listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from pytest_portability.errors import RuntimeUnavailable, Unsupported, UsageError
from pytest_portability.kernels import effective_precision
from pytest_portability.models import Arrays, Model
from pytest_portability.runtimes import PRECISIONS, Build, Request, Runtime, load
from runtimes.subjects import SUBJECTS, Subject


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.id)
def subject(request: pytest.FixtureRequest) -> Subject:
    """A runtime with a model, and what is known of both."""
    found: Subject = request.param
    return found


@pytest.fixture
def runtime(subject: Subject) -> Runtime:
    """The runtime under test."""
    return subject.registered or load(subject.name)


@pytest.fixture
def model(subject: Subject) -> Model:
    """The subject's model."""
    return subject.make_model()


def _request(subject: Subject, model: Model, precision: str = "native") -> Request:
    return Request(
        model=model, handle=subject.handle, platform=subject.platform, precision=precision
    )


@pytest.fixture
def build(subject: Subject, runtime: Runtime, model: Model) -> Iterator[Build]:
    """A native build, closed afterwards."""
    try:
        made = runtime.build(_request(subject, model))
    except RuntimeUnavailable as exc:
        pytest.skip(str(exc))
    with closing(made):
        yield made


def _run(build: Build, inputs: Arrays) -> Arrays:
    build.stage(inputs)
    build.launch()
    build.synchronize()
    return build.fetch()


def _assert_right(subject: Subject, inputs: Arrays, outputs: Arrays, tolerance: float) -> None:
    for array in outputs.values():
        assert isinstance(array, np.ndarray)
        assert np.isfinite(array).all()
    if subject.expected is None:
        return
    expected = subject.expected(inputs)
    assert list(outputs) == list(expected)
    for name, array in outputs.items():
        assert array.shape == expected[name].shape
        np.testing.assert_allclose(array, expected[name], atol=tolerance, rtol=0)


def test_a_runtime_says_what_it_is(subject: Subject, runtime: Runtime) -> None:
    """Name, family and kinds are there without the heavy package being imported for them."""
    assert isinstance(runtime, Runtime)
    assert runtime.name == subject.name
    assert runtime.name.startswith(runtime.family)
    assert set(runtime.kinds) <= {"onnx", "torch"}
    assert set(runtime.converted) <= {"fp16", "bf16"}
    assert all(isinstance(name, str) for name in runtime.packages)
    assert runtime.supports("native", subject.platform) == ""


def test_outputs_are_right(subject: Subject, build: Build) -> None:
    """Stage, launch, synchronize, fetch give what the model computes."""
    inputs = subject.inputs(2)
    _assert_right(subject, inputs, _run(build, inputs), subject.native_tolerance)


def test_outputs_are_new_arrays_each_time(subject: Subject, build: Build) -> None:
    """Writing into fetched outputs changes neither the next ones nor the inputs."""
    inputs = subject.inputs(2)
    given = {name: array.copy() for name, array in inputs.items()}
    first = _run(build, inputs)
    kept = {name: array.copy() for name, array in first.items()}
    for array in first.values():
        array[...] = 0
    second = build.fetch()
    build.launch()
    build.synchronize()
    third = build.fetch()
    for name, array in kept.items():
        np.testing.assert_array_equal(second[name], array)
        np.testing.assert_allclose(third[name], array, atol=subject.native_tolerance)
    for name, array in given.items():
        np.testing.assert_array_equal(inputs[name], array)


def test_launches_may_be_queued_before_one_synchronize(subject: Subject, build: Build) -> None:
    """Several launches and one synchronize are how a window is timed."""
    inputs = subject.inputs(2)
    build.stage(inputs)
    for _ in range(5):
        build.launch()
    build.synchronize()
    build.synchronize()
    _assert_right(subject, inputs, build.fetch(), subject.native_tolerance)


def test_a_new_stage_replaces_the_batch(subject: Subject, build: Build) -> None:
    """What was staged last is what is launched."""
    _run(build, subject.inputs(2))
    inputs = {name: array[::-1].copy() for name, array in subject.inputs(2).items()}
    _assert_right(subject, inputs, _run(build, inputs), subject.native_tolerance)


def test_predict_takes_another_batch_size(subject: Subject, build: Build) -> None:
    """A metric may run a whole evaluation set through the measured build."""
    _run(build, subject.inputs(2))
    for batch in (3, 1):
        inputs = subject.inputs(batch)
        _assert_right(subject, inputs, build.predict(inputs), subject.native_tolerance)


def test_observed_names_who_ran_it(subject: Subject, build: Build) -> None:
    """Facts are complete after the first inference, and plausible."""
    _run(build, subject.inputs(2))
    observed = build.observed()
    assert observed.precision in ("", *PRECISIONS[1:])
    assert observed.toolchain
    assert all(observed.toolchain.values())
    assert all(isinstance(value, str) for value in observed.options.values())
    assert observed.threads is None or observed.threads >= 1
    assert all(count > 0 for count in observed.providers.values())
    if observed.asked_provider:
        assert list(observed.providers) == [observed.asked_provider]


def test_a_cpu_has_no_device_memory(subject: Subject, build: Build) -> None:
    """The peak is asked for accelerators only."""
    _run(build, subject.inputs(2))
    if subject.platform == "cpu":
        assert build.device_memory_bytes() is None


def test_close_may_be_called_twice(subject: Subject, build: Build) -> None:
    """Cleaning up after a failure must not raise another one."""
    _run(build, subject.inputs(2))
    build.close()
    build.close()


def test_an_unknown_option_lists_the_valid_ones(
    subject: Subject,
    runtime: Runtime,
    model: Model,
    build: Build,  # skips where the runtime is not here
) -> None:
    """A misspelt option is never silently ignored."""
    request = Request(
        model=model,
        handle=subject.handle,
        platform=subject.platform,
        options={"no_such_option": 1},
    )
    with pytest.raises(UsageError, match=r"no_such_option.*valid") as caught:
        runtime.build(request)
    assert subject.name.partition(".")[0] in str(caught.value)


def test_a_precision_asked_for_is_the_one_that_ran(
    subject: Subject,
    runtime: Runtime,
    model: Model,
    build: Build,  # skips where the runtime is not here
) -> None:
    """By the build's own word or, where it has none, by its trace."""
    inputs = subject.inputs(2)
    for precision in subject.precisions:
        request = _request(subject, model, precision)
        with closing(runtime.build(request)) as made:
            outputs = made.predict(inputs)
            found = made.observed().precision
        assert (found or effective_precision(runtime.trace(request, inputs))) == precision
        tolerance = subject.tolerance if precision == "fp32" else subject.native_tolerance
        _assert_right(subject, inputs, outputs, tolerance)


def test_a_precision_that_is_refused_has_a_reason(
    subject: Subject,
    runtime: Runtime,
    model: Model,
    build: Build,  # skips where the runtime is not here
) -> None:
    """What ``supports`` refuses ``build`` refuses too, and never builds something else."""
    for precision in PRECISIONS:
        reason = runtime.supports(precision, subject.platform)
        if not reason:
            continue
        with pytest.raises(Unsupported) as caught:
            runtime.build(_request(subject, model, precision))
        assert reason in str(caught.value)


def test_a_trace_is_repeatable(
    subject: Subject,
    runtime: Runtime,
    model: Model,
    build: Build,  # skips where the runtime is not here
) -> None:
    """Two traces of one build have equal kernels and launches; shares of time are fractions."""
    inputs = subject.inputs(2)
    paths = [runtime.trace(_request(subject, model), inputs) for _ in range(2)]
    first, second = ([(use.kernel, use.launches) for use in path.uses] for path in paths)
    assert first == second
    assert paths[0].source == paths[1].source
    assert paths[0].runtime == subject.name
    if paths[0].evidence == "none":
        return
    assert first
    assert any(use.kernel.role == "compute" for use in paths[0].uses)
    assert all(use.launches >= 1 for use in paths[0].uses)
    for path in paths:
        shares = [use.share for use in path.uses if use.share is not None]
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) <= 1 + 1e-6
