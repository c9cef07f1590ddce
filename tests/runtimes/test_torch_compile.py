"""The torch.compile runtime: whether it compiled, what it fused, what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_models  # noqa: E402 - needs torch
from torch_models import WIDTH, rows, seeded  # noqa: E402 - needs torch

from pytest_portability.errors import (  # noqa: E402 - after the check for torch
    BuildError,
    Unsupported,
    UsageError,
)
from pytest_portability.kernel_changes import diff  # noqa: E402
from pytest_portability.kernels import KernelPath  # noqa: E402
from pytest_portability.runtimes import Request, load, torch_compile  # noqa: E402
from pytest_portability.runtimes.torch_compile import Compiled  # noqa: E402
from pytest_portability.runtimes.torch_ops import kernel_times  # noqa: E402

MLP = rows(4, WIDTH)
TOKENS = rows(2, 6, WIDTH)


def _request(
    module: Any, precision: str = "native", cache_dir: str = "", **options: Any
) -> Request:
    return Request(
        model=torch_models.model(module),
        handle="cpu",
        platform="cpu",
        precision=precision,
        options=options,
        cache_dir=cache_dir,
    )


@contextmanager
def _built(module: Any, **options: Any) -> Iterator[Any]:
    with closing(load("torch.compile").build(_request(module, **options))) as build:
        yield build


def _trace(module: Any, inputs: Any, precision: str = "native", **options: Any) -> KernelPath:
    return load("torch.compile").trace(_request(module, precision, **options), inputs, runs=1)


@pytest.mark.parametrize(
    "package",
    [
        *("triton", "triton-rocm", "triton-xpu"),
        *("pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"),
    ],
)
def test_triton_is_in_the_toolchain_whoever_packages_it(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Under one name, so that a record tells one version from another."""

    def version(name: str) -> str:
        if name != package:
            raise metadata.PackageNotFoundError(name)
        return "3.7.0+git1234"

    monkeypatch.setattr(metadata, "version", version)
    assert torch_compile._toolchain("") == {"triton": "3.7.0+git1234"}


def test_a_module_that_was_compiled_says_so() -> None:
    """And gives what the module gives, with the compiler in the toolchain."""
    module = seeded(torch_models.Mlp)
    with torch.no_grad():
        expected = module(torch.from_numpy(MLP["0"])).numpy()
    with _built(module) as build:
        build.stage(MLP)
        assert build.observed().compiled is None
        build.launch()
        build.launch()
        found = build.observed()
        np.testing.assert_allclose(build.fetch()["output"], expected, atol=1e-5)
    assert found.compiled is True
    assert found.graph_breaks == 0
    assert found.asked_provider == "inductor"
    assert list(found.providers) == ["inductor"]
    assert found.precision == "fp32"
    assert found.toolchain["c++"]
    assert found.options["backend"] == "inductor"
    assert found.notes == ()


def test_compiling_for_another_batch_in_predict_is_no_recompilation() -> None:
    """Recompiling counts only where it could have been timed."""
    with _built(seeded(torch_models.Mlp), backend="aot_eager") as build:
        build.stage(MLP)
        build.launch()
        build.predict(rows(7, WIDTH))
        assert build.observed().notes == ()


def test_a_recompilation_among_the_timed_runs_is_noted() -> None:
    """The staged batch changed its shape."""
    with _built(seeded(torch_models.Mlp), backend="aot_eager") as build:
        build.stage(MLP)
        build.launch()
        build.stage(TOKENS)
        build.launch()
        assert "recompiled 1 × after the first call" in build.observed().notes


def test_graph_breaks_are_counted_with_their_reason() -> None:
    """One look at a value is one break; the module still ran compiled."""
    with _built(seeded(torch_models.Breaking), backend="aot_eager") as build:
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert (found.compiled, found.graph_breaks) == (True, 1)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("graph break ×1: ")
    assert "item()" in found.notes[0]
    assert found.asked_provider == "aot_eager"


def test_a_graph_break_in_a_loop_leaves_the_loop_eager_and_compiles_what_it_calls() -> None:
    """That the backend got nothing would be as wrong as that it got everything."""
    with _built(seeded(torch_models.Looping), backend="aot_eager") as build:
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert found.compiled is False
    assert list(found.providers) == ["aot_eager"]
    assert found.graph_breaks
    (why,) = (note for note in found.notes if note.startswith("torch.compile"))
    assert why.startswith("torch.compile left part of the module eager: ")


def test_a_compiler_that_was_switched_off_is_found_out() -> None:
    """``force_eager`` leaves no trace but the lack of one; the provider is eager's."""
    with (
        _built(seeded(torch_models.Mlp)) as build,
        torch.compiler.set_stance("force_eager"),
    ):
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert found.compiled is False
    assert list(found.providers) == ["aten:cpu"]
    assert found.asked_provider == "inductor"
    assert found.notes == (
        (
            "torch.compile declined and the module ran eagerly: no frame was compiled "
            "(stance force_eager, torch.compiler.disable or disable=True)"
        ),
    )


def test_a_failing_backend_whose_error_is_suppressed_is_found_out() -> None:
    """The user would see nothing but a slow model."""
    from torch._dynamo import config, register_backend  # noqa: PLC0415 - private, only here

    def failing(_graph: Any, _examples: Any) -> Any:
        message = "this backend is broken"
        raise ValueError(message)

    register_backend(failing, name="failing")
    with (
        config.patch(suppress_errors=True),
        _built(seeded(torch_models.Mlp), backend="failing") as build,
    ):
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert found.compiled is False
    assert any("this backend is broken" in note for note in found.notes)


def test_a_module_that_must_not_break_raises() -> None:
    """``fullgraph`` is the user's own guard."""
    with _built(seeded(torch_models.Breaking), fullgraph=True) as build:
        build.stage(MLP)
        with pytest.raises(BuildError, match=r"could not run the module on cpu: .*data-dependent"):
            build.launch()


def test_the_cache_goes_where_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next repeat finds it there; the environment is put back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "before"))
    request = _request(seeded(torch_models.Mlp), cache_dir=str(tmp_path / "asked"))
    with closing(load("torch.compile").build(request)) as build:
        build.predict(MLP)
    assert any(path.is_file() for path in (tmp_path / "asked").rglob("*"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "before")


@pytest.mark.parametrize(
    ("facts", "really"),
    [
        ({}, True),
        ({"frames": 0, "frames_ok": 0, "graphs": 0}, False),
        ({"frames": 2}, False),
        ({"graphs": 0}, False),
        ({"failures": ("forward: BackendCompilerFailed: boom",)}, False),
    ],
)
def test_compiled_means_everything_taken_up_was_finished(
    facts: dict[str, Any], really: bool
) -> None:
    """Frames, graphs, failures: each alone can deny it."""
    whole: dict[str, Any] = {
        "frames": 1,
        "frames_ok": 1,
        "graphs": 1,
        "calls": 3,
        "breaks": {},
        "failures": (),
    }
    assert Compiled(**(whole | facts)).really is really


def test_a_trace_tells_what_each_kernel_fuses() -> None:
    """Exact and repeatable, indices stripped; time only where the profiler saw the kernel."""
    first, second = (_trace(seeded(torch_models.Mlp), MLP) for _ in range(2))
    assert diff(first, second) == ()
    assert [(u.kernel, u.launches) for u in first.uses] == [
        (u.kernel, u.launches) for u in second.uses
    ]
    found = {use.kernel.op: use for use in first.uses}
    assert found["addmm"].launches == 2
    assert found["addmm"].kernel.implementation == "extern"
    fused = [u.kernel for u in first.uses if u.kernel.implementation == "cpp"]
    assert {"add", "native_layer_norm"} <= set(fused[-1].absorbs) | set(fused[0].absorbs)
    assert all(not kernel.op[-1].isdigit() for kernel in fused)
    assert {kernel.precision for kernel in fused} == {"fp32"}
    assert first.source["gelu"] == 1
    assert all(use.share is not None for use in first.uses)


def test_precision_shows_in_the_compiled_kernels() -> None:
    """Products in bf16, and the casts are kernels that only move."""
    path = _trace(seeded(torch_models.Mlp), MLP, "bf16")
    found = {use.kernel.op: use.kernel for use in path.uses}
    assert found["addmm"].precision == "bf16"
    assert found["cpp_fused__to_copy"].role == "move"


def test_what_runs_between_graph_breaks_is_said_to_be_missing() -> None:
    """Two graphs, one path, one caveat."""
    path = _trace(seeded(torch_models.Breaking), MLP)
    assert "what runs eagerly between graph breaks is not in the path" in path.caveats
    assert {"addmm", "cpp_fused_tanh"} <= {use.kernel.op for use in path.uses}


def test_a_trace_of_what_was_compiled_in_part_has_that_part() -> None:
    path = _trace(seeded(torch_models.Looping), MLP)
    assert {use.kernel.provider for use in path.uses} == {"inductor"}
    assert path.caveats[-1] == (
        "what the compiler left eager is not in the path, and each graph is in it once"
    )


def test_a_trace_of_a_module_that_did_not_compile_is_the_eager_one() -> None:
    """With the reason for it."""
    with torch.compiler.set_stance("force_eager"):
        path = _trace(seeded(torch_models.Mlp), MLP)
    assert {use.kernel.provider for use in path.uses} == {"aten:cpu"}
    assert path.caveats == ("torch.compile declined; these are the operators of the eager run",)


def test_another_backend_does_not_tell_its_kernels() -> None:
    """No evidence is said to be none."""
    path = _trace(seeded(torch_models.Mlp), MLP, backend="aot_eager")
    assert (path.evidence, path.uses) == ("none", ())
    assert path.caveats == ("backend 'aot_eager' does not tell its kernels",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": "default"}, "unknown option 'modes' for runtime 'torch.compile'; valid: back"),
        ({"mode": "fast"}, "option 'mode' of runtime 'torch.compile' is 'fast'; valid: 'default'"),
        (
            {"options": {"freezin": True}},
            "unknown inductor option 'freezin' for runtime 'torch.compile'; near ones: freezing",
        ),
        (
            {"mode": "default", "options": {"freezing": True}},
            "runtime 'torch.compile' takes 'mode' or 'options', not both",
        ),
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    """Inductor's own are checked too, and near ones are named."""
    with pytest.raises(UsageError) as caught, _built(seeded(torch_models.Mlp), **options):
        pass
    assert message in str(caught.value)


def test_a_machine_without_a_compiler_skips_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a stack trace from deep inside inductor."""
    from torch._inductor import config  # noqa: PLC0415 - private, only here

    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(Unsupported) as caught,
        _built(seeded(torch_models.Mlp)),
    ):
        pass
    assert str(caught.value).startswith(
        "torch.compile needs a working C++ compiler for the CPU and there is none; install g++ or "
        "clang++, or name one in CXX (InvalidCxxCompiler: "
    )


def test_a_device_without_a_profiler_has_no_times() -> None:
    """None is better than a guess."""
    found = kernel_times(lambda: None, lambda: None, names={"aten::mm"}, device="npu", runs=1)
    assert (found.shares, found.busy_s) == ({}, None)
    assert found.caveats == ("no time per kernel: torch has no profiler for 'npu'",)


def test_another_name_is_not_torch_compile() -> None:
    """The module answers to one name."""
    from pytest_portability.runtimes.torch_compile import runtime  # noqa: PLC0415 - only here

    with pytest.raises(UsageError, match=r"unknown runtime 'torch\.export'"):
        runtime("torch.export")
