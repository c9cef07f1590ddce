"""The eager torch runtime: what it runs, what it observes, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_models  # noqa: E402 - needs torch
from torch_models import WIDTH, rows, seeded  # noqa: E402 - needs torch

from pytest_portability import models  # noqa: E402 - after the check for torch
from pytest_portability.errors import (  # noqa: E402 - after the check for torch
    BuildError,
    DoesNotFit,
    InputsError,
    Unsupported,
    UsageError,
)
from pytest_portability.kernels import KernelPath, effective_precision  # noqa: E402
from pytest_portability.runtimes import (  # noqa: E402
    Request,
    load,
    torch_ops,
)
from pytest_portability.runtimes import torch as adapter  # noqa: E402
from pytest_portability.runtimes.torch_ops import precision_word  # noqa: E402
from pytest_portability.runtimes.torch_settings import (  # noqa: E402
    check_precision,
    in_force,
    refusal,
    runs_tf32,
)


def _request(module: Any, precision: str = "native", **options: Any) -> Request:
    return Request(
        model=torch_models.model(module),
        handle="cpu",
        platform="cpu",
        precision=precision,
        options=options,
    )


@contextmanager
def _built(module: Any, precision: str = "native", **options: Any) -> Iterator[Any]:
    with closing(load("torch").build(_request(module, precision, **options))) as build:
        yield build


def _ops(path: KernelPath) -> dict[str, int]:
    found: dict[str, int] = {}
    for use in path.uses:
        found[use.kernel.op] = found.get(use.kernel.op, 0) + use.launches
    return found


def _trace(module: Any, inputs: Any, precision: str = "native", **options: Any) -> KernelPath:
    return load("torch").trace(_request(module, precision, **options), inputs, runs=1)


MLP = rows(2, WIDTH)
TOKENS = rows(2, 6, WIDTH)


class Pair(NamedTuple):
    """Two outputs with names."""

    left: Any
    right: Any


@dataclass
class Result:
    """As libraries return it."""

    logits: Any
    loss: Any = None


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (np.ones(1), ["output"]),
        ((np.ones(1), np.ones(1)), ["output_0", "output_1"]),
        ([np.ones(1), (np.ones(1), [np.ones(1)])], ["output_0", "output_1.0", "output_1.1.0"]),
        ({"b": np.ones(1), "a": [np.ones(1)]}, ["b", "a.0"]),
        (Pair(np.ones(1), None), ["left"]),
        (Result(logits=np.ones(1)), ["logits"]),
        ((np.ones(1), 3, "text"), ["output_0", "output_1"]),
    ],
)
def test_outputs_are_named_by_key_or_position(value: Any, names: list[str]) -> None:
    """Depth first; None and text are no outputs."""
    assert [name for name, _ in adapter.named_outputs(value)] == names


class Returning(torch.nn.Module):  # type: ignore[misc,name-defined]  # mypy does not follow torch
    """Returns what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Any) -> Any:
        """Whatever it is given."""
        del x
        return self.value


@pytest.mark.parametrize("value", [None, "text", [], iter(()), object(), {"a": (None,)}])
def test_outputs_without_a_tensor_are_refused(value: Any) -> None:
    """Or nothing would be compared, and that would pass."""
    text = f"forward returned {type(value).__name__}: no output to compare; return a tensor, or "
    with _built(Returning(value)) as build:
        build.stage(MLP)
        build.launch()
        with pytest.raises(BuildError, match=text):
            build.fetch()


@pytest.mark.parametrize(
    ("value", "name"), [({1: 0.0, "1": 1.0}, "1"), ({"a.b": 0.0, "a": {"b": 1.0}}, "a.b")]
)
def test_outputs_of_one_name_are_refused(value: Any, name: str) -> None:
    """Neither is dropped silently."""
    with pytest.raises(BuildError, match=rf"several outputs of one name: '{name}'"):
        adapter.named_outputs(value)


def test_named_inputs_and_nested_outputs_go_through() -> None:
    """Decimal names are positions, others are keywords."""
    inputs = {**rows(2, WIDTH), "scale": np.float32(2.0)}
    with _built(seeded(torch_models.Named)) as build:
        outputs = build.predict(inputs)
    assert list(outputs) == ["logits", "hidden.0", "hidden.2.sum"]
    np.testing.assert_allclose(outputs["hidden.2.sum"], outputs["logits"].sum(-1), atol=1e-5)


def test_inputs_of_any_layout_are_taken() -> None:
    """Reversed, read-only, big-endian: the caller's arrays are copied."""
    plain = MLP["0"]
    frozen = plain.copy()
    frozen.flags.writeable = False
    with _built(seeded(torch_models.Mlp)) as build:
        expected = build.predict({"0": plain})["output"]
        for other in (plain[::-1][::-1], frozen, plain.astype(">f4"), plain.copy(order="F")):
            np.testing.assert_array_equal(build.predict({"0": other})["output"], expected)


def test_inputs_that_do_not_fit_say_what_the_module_takes() -> None:
    """Given, wanted, and how a sequence and a mapping are passed."""
    with _built(seeded(torch_models.Mlp)) as build, pytest.raises(InputsError) as caught:
        build.stage({"tokens": MLP["0"]})
    text = str(caught.value)
    assert "inputs (0 by position, ['tokens'] by name) do not fit Mlp.forward(x" in text
    assert text.endswith("a sequence is passed by position, a mapping by name")


def test_inputs_of_a_type_that_torch_lacks_are_refused() -> None:
    """Text stays outside."""
    with _built(seeded(torch_models.Mlp)) as build, pytest.raises(InputsError) as caught:
        build.stage({"0": np.array(["text"])})
    assert "input '0' has dtype 'str128', which torch does not take" in str(caught.value)


def test_predict_leaves_the_staged_batch() -> None:
    """A metric between windows does not change what the windows time."""
    with _built(seeded(torch_models.Mlp)) as build:
        build.stage(MLP)
        build.predict(rows(5, WIDTH))
        build.launch()
        assert build.fetch()["output"].shape == (2, WIDTH)


def test_a_module_in_training_mode_is_noted_and_left_so() -> None:
    """It may be what the user wants to find out."""
    module = seeded(torch_models.Dropping).train()
    with _built(module) as build:
        build.predict(MLP)
        build.stage(MLP)
        notes = build.observed().notes
    assert "the module is in training mode; call .eval()" in notes
    assert module.training


def test_an_lstm_names_its_nested_state() -> None:
    """y, (h, c)."""
    with _built(seeded(torch_models.Lstm)) as build:
        assert list(build.predict(rows(2, 3, 8))) == ["output_0", "output_1.0", "output_1.1"]


def test_facts_are_observed_not_requested() -> None:
    """Threads, switches, versions and who ran the operators."""
    with _built(seeded(torch_models.Mlp), num_threads=1) as build:
        assert build.observed().precision == ""
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert found.precision == "fp32"
    assert found.asked_provider == "aten:cpu"
    assert set(found.providers) == {"aten:cpu"}
    assert found.threads == 1
    assert found.options["num_threads"] == "1"
    assert found.options["autocast"] == "off"
    assert found.options["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found.toolchain["torch"] == torch.__version__
    assert (found.compiled, found.graph_breaks) == (None, None)


def test_switches_are_put_back() -> None:
    """One build must not change the next one in the same process."""
    before = (torch.get_num_threads(), torch.backends.cudnn.allow_tf32)
    with _built(seeded(torch_models.Mlp), "fp32", num_threads=1, deterministic=True):
        assert torch.get_num_threads() == 1
        assert not torch.backends.cudnn.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
    assert (torch.get_num_threads(), torch.backends.cudnn.allow_tf32) == before
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_autocast_and_shows(precision: str) -> None:
    """Products in half precision, the casts as moves, the module's weights untouched."""
    module = seeded(torch_models.Mlp)
    with _built(module, precision) as build:
        build.stage(MLP)
        build.launch()
        assert build.observed().precision == precision
    path = _trace(module, MLP, precision)
    found = {(use.kernel.op, use.kernel.precision): use.kernel.role for use in path.uses}
    assert found["addmm", precision] == "compute"
    assert found["_to_copy", precision] == "move"
    assert found["native_layer_norm", "fp32"] == "compute"
    assert module.up.weight.dtype == torch.float32
    assert effective_precision(path) == precision


def test_bf16_outputs_come_as_float32_and_say_so() -> None:
    """NumPy has no bf16."""
    with _built(seeded(torch_models.Attention), "bf16") as build:
        assert build.predict(TOKENS)["output"].dtype == np.float32
        assert "output 'output' is bf16, fetched as float32" in build.observed().notes


def test_a_module_in_half_precision_is_native() -> None:
    """Its inputs are cast as its weights are, and that is noted."""
    with _built(seeded(torch_models.Mlp).bfloat16()) as build:
        build.stage(MLP)
        build.launch()
        found = build.observed()
    assert found.precision == "bf16"
    assert "input '0' was cast to bf16, as the weights are" in found.notes


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (
            "tf32",
            (
                "TF32 is switched on NVIDIA GPUs (sm_80 and later) and Intel GPUs with matrix "
                "engines only, not on 'cpu'"
            ),
        ),
        (
            "fp32",
            (
                "fp32: the module's weights are torch.bfloat16; call .float() on it, or ask for "
                "'native'"
            ),
        ),
        (
            "int8",
            (
                "int8: the module holds no int8 weights; quantise it first (torch.ao, torchao), "
                "this plugin does not"
            ),
        ),
    ],
)
def test_a_precision_that_cannot_be_done_is_refused(precision: str, message: str) -> None:
    """With its reason, before anything is built."""
    with (
        pytest.raises(Unsupported) as caught,
        _built(seeded(torch_models.Mlp).bfloat16(), precision),
    ):
        pass
    assert str(caught.value) == message


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.*quantiz.*:UserWarning")
def test_a_quantised_module_runs_in_int8() -> None:
    """By the operators it calls: their results are fp32."""
    from torch.ao.quantization import quantize_dynamic  # noqa: PLC0415 - deprecated, warns

    module = quantize_dynamic(seeded(torch_models.Mlp), {torch.nn.Linear}, dtype=torch.qint8)
    path = _trace(module, MLP, "int8")
    assert _ops(path)["quantized::linear_dynamic"] == 2
    assert effective_precision(path) == "int8"


def test_tf32_shows_by_the_switch_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions by cuDNN's, products by cuBLAS's, and not before Ampere or on ROCm."""
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert runs_tf32(torch, device, "aten::convolution")
    assert not runs_tf32(torch, device, "aten::addmm")
    assert not runs_tf32(torch, device, "aten::native_layer_norm")
    assert not runs_tf32(torch, torch.device("cpu"), "aten::convolution")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert not runs_tf32(torch, device, "aten::convolution")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert not runs_tf32(torch, device, "aten::convolution")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert not runs_tf32(torch, device, "aten::convolution")


@pytest.mark.parametrize(
    ("capability", "override", "words"),
    [((7, 5), "", "older than sm_80"), ((9, 0), "0", "NVIDIA_TF32_OVERRIDE=0")],
)
def test_tf32_is_refused_where_the_card_or_the_environment_has_none(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], override: str, words: str
) -> None:
    """A skip with its reason, not a placement failure."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    model = torch_models.model(seeded(torch_models.Mlp))
    request = Request(model=model, handle="cuda:0", platform="cuda", precision="tf32")
    with pytest.raises(Unsupported, match=words):
        check_precision(torch, request)


class Xpu:
    """``torch.xpu`` of a machine whose second card has matrix engines; not seen on a device."""

    def __init__(self) -> None:
        self.current = 0

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make it the current one."""
        before, self.current = self.current, device.index
        yield
        self.current = before

    def is_tf32_supported(self) -> bool:
        """Of the current device."""
        return self.current == 1


def _intel(xpu: Any, **switches: bool) -> Any:
    """Torch with that ``xpu``, and what sets TF32; nothing of it warns as a CPU's torch would."""
    backends = SimpleNamespace(
        mkldnn=SimpleNamespace(**switches), cudnn=SimpleNamespace(allow_tf32=True)
    )
    precision = ["highest"]
    return SimpleNamespace(
        __version__="2.13.0+xpu",
        xpu=xpu,
        backends=backends,
        device=torch.device,
        float16=torch.float16,
        bfloat16=torch.bfloat16,
        get_float32_matmul_precision=lambda: precision[0],
        set_float32_matmul_precision=lambda value: precision.__setitem__(0, value),
    )


def _on_xpu(index: int, precision: str) -> Request:
    model = torch_models.model(seeded(torch_models.Mlp))
    return Request(model=model, handle=f"xpu:{index}", platform="xpu", precision=precision)


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("fp32", False)])
def test_tf32_of_an_intel_gpu_is_switched_in_onednn(precision: str, allowed: bool) -> None:
    """And put back; the switches that inductor reads are set as well."""
    fake = _intel(Xpu(), allow_tf32=not allowed)
    with in_force(fake, _on_xpu(1, precision)):
        assert fake.backends.mkldnn.allow_tf32 is allowed
        assert fake.backends.cudnn.allow_tf32 is allowed
        assert runs_tf32(fake, torch.device("xpu:1"), "aten::addmm") is allowed
        assert runs_tf32(fake, torch.device("xpu:1"), "aten::convolution_overrideable") is allowed
        assert not runs_tf32(fake, torch.device("xpu:1"), "aten::native_layer_norm")
        assert not runs_tf32(fake, torch.device("xpu:0"), "aten::addmm")
    assert fake.backends.mkldnn.allow_tf32 is not allowed
    assert fake.get_float32_matmul_precision() == "highest"


def test_a_torch_without_the_switch_has_no_tf32_on_intel_gpus() -> None:
    """It says neither which cards could nor whether to; fp32 is what it does anyway."""
    fake = _intel(SimpleNamespace())
    with in_force(fake, _on_xpu(0, "fp32")):
        assert not runs_tf32(fake, torch.device("xpu:0"), "aten::addmm")
    with pytest.raises(
        Unsupported, match=r"^tf32: xpu:0: torch 2.13.0\+xpu knows of no TF32 on it$"
    ):
        check_precision(fake, _on_xpu(0, "tf32"))


def test_tf32_is_for_the_intel_gpus_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's variable says nothing about them."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    fake = _intel(Xpu(), allow_tf32=True)
    check_precision(fake, _on_xpu(1, "tf32"))
    with pytest.raises(Unsupported, match="knows of no TF32 on it"):
        check_precision(fake, _on_xpu(0, "tf32"))
    assert refusal("tf32", "xpu") == ""


@pytest.mark.parametrize("name", [name for name in dir(torch) if name.startswith("float8_")])
def test_every_form_of_fp8_is_fp8(name: str) -> None:
    """AMD's MI300 computes in those with ``fnuz``."""
    assert precision_word(getattr(torch, name)) == "fp8"


class Allocator:
    """``torch.accelerator`` of a device that had something on it before the build."""

    def __init__(self, held: int) -> None:
        self.now = self.peak = held

    def memory_allocated(self, _device: object) -> int:
        """What is given out."""
        return self.now

    def max_memory_allocated(self, _device: object) -> int:
        """The most since the last reset."""
        return self.peak

    def reset_peak_memory_stats(self, _device: object) -> None:
        """Begin anew at what is held."""
        self.peak = self.now


def test_device_memory_is_the_build_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the yardstick's matrices; but weights that lay on the device already are its own."""
    module = seeded(torch_models.Mlp)
    monkeypatch.setattr(module, "to", lambda *_, **__: module)
    for here, own in (("cpu", 0), ("cuda", 400)):
        allocator = Allocator(held=1000 + own)
        monkeypatch.setattr(torch, "accelerator", allocator)
        monkeypatch.setattr(adapter, "_bytes_on", lambda *_, own=own: own)
        model = torch_models.model(module)
        with closing(
            adapter.ModuleBuild(Request(model=model, handle="cuda:0", platform="cuda"))
        ) as build:
            allocator.now = 1400
            allocator.peak = 1900
            assert build.device_memory_bytes() == 900, here
            allocator.peak = 500
            assert build.device_memory_bytes() == 0


def test_tensors_on_the_device_are_counted_once() -> None:
    """Shared weights are one tensor; another device's are not there."""
    module = torch.nn.Linear(3, 2)
    assert adapter._bytes_on(module, torch.device("cpu")) == 4 * (3 * 2 + 2)
    assert adapter._bytes_on(module, torch.device("cuda:0")) == 0
    both = torch.nn.Sequential(module, module)
    assert adapter._bytes_on(both, torch.device("cpu")) == 4 * (3 * 2 + 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"threads": 1},
            (
                "unknown option 'threads' for runtime 'torch'; valid: channels_last, "
                "cudnn_benchmark, deterministic, matmul_precision, num_threads, sdpa"
            ),
        ),
        (
            {"num_threads": True},
            "option 'num_threads' of runtime 'torch' is True; valid: a whole number of at least 1",
        ),
        (
            {"matmul_precision": "low"},
            (
                "option 'matmul_precision' of runtime 'torch' is 'low'; valid: 'highest', "
                "'high' or 'medium'"
            ),
        ),
        (
            {"sdpa": ["fast"]},
            (
                "option 'sdpa' of runtime 'torch' is ['fast']; valid: one or a list of 'math', "
                "'flash', 'efficient', 'cudnn'"
            ),
        ),
        (
            {"channels_last": 1},
            "option 'channels_last' of runtime 'torch' is 1; valid: true or false",
        ),
    ],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    """Name, value and what is valid."""
    with pytest.raises(UsageError) as caught, _built(seeded(torch_models.Mlp), **options):
        pass
    assert str(caught.value) == message


def test_channels_last_changes_the_layout_not_the_result() -> None:
    """Module and inputs both."""
    image = rows(2, 3, 8, 8)
    with _built(seeded(torch_models.Conv)) as build:
        expected = build.predict(image)["output"]
    with _built(seeded(torch_models.Conv), channels_last=True) as build:
        np.testing.assert_allclose(build.predict(image)["output"], expected, atol=1e-5)
        assert build.observed().options["channels_last"] == "True"


def test_a_trace_is_exact_and_repeatable() -> None:
    """Kernels and launches are equal; views are in the source, not among the kernels."""
    first, second = (_trace(seeded(torch_models.Attention), TOKENS) for _ in range(2))
    assert [(u.kernel, u.launches) for u in first.uses] == [
        (u.kernel, u.launches) for u in second.uses
    ]
    assert _ops(first)["addmm"] == 2
    assert "view" in first.source
    assert "view" not in _ops(first)
    assert first.evidence == "executed"


def test_shares_of_time_belong_to_the_operators_that_ran() -> None:
    """Fractions that do not exceed the whole."""
    path = _trace(seeded(torch_models.Mlp), rows(64, WIDTH))
    shares = [use.share for use in path.uses]
    assert path.caveats == ()
    assert all(share is not None and 0 <= share <= 1 for share in shares)
    assert sum(share or 0.0 for share in shares) <= 1 + 1e-9


def test_a_profiler_that_fails_costs_the_shares_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is there, and the caveat says why there is no time."""
    monkeypatch.setattr("torch.profiler.profile", lambda **_: 1 / 0)
    path = _trace(seeded(torch_models.Mlp), MLP)
    assert _ops(path)["addmm"] == 2
    assert {use.share for use in path.uses} == {None}
    assert path.caveats == (
        "no time per kernel: torch.profiler failed with ZeroDivisionError: division by zero",
    )


def test_attention_forced_to_math_shows() -> None:
    """The fused kernel is gone and its parts are there."""
    fused = _ops(_trace(seeded(torch_models.Attention), TOKENS))
    forced = _ops(_trace(seeded(torch_models.Attention), TOKENS, sdpa="math"))
    by_hand = _ops(_trace(seeded(torch_models.Attention, by_hand=True), TOKENS))
    assert any("flash_attention" in op for op in fused)
    assert "bmm" not in fused
    assert forced["bmm"] == by_hand["bmm"] == 2
    assert not any("attention" in op for op in forced)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), DoesNotFit),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"), DoesNotFit),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), DoesNotFit),
        (MemoryError(), DoesNotFit),
        (ValueError("boom"), BuildError),
    ],
)
def test_what_torch_raises_is_told_apart(error: Exception, kind: type[Exception]) -> None:
    """Out of memory is a result; the rest is torch's own words."""
    with _built(seeded(torch_models.Broken, error)) as build:
        build.stage(MLP)
        with pytest.raises(kind) as caught:
            build.launch()
    text = f"torch could not run the module on cpu: {type(error).__name__}: {error}"
    assert str(caught.value) == text


def test_facts_that_cannot_be_had_are_noted() -> None:
    """A module that cannot be traced was still measured."""
    with _built(seeded(torch_models.Broken, ValueError("boom"))) as build:
        build.stage(MLP)
        assert build.observed().notes == (
            "torch could not trace the module's operators: ValueError: boom",
        )


def test_a_device_that_is_not_here_is_the_runtimes_own_message() -> None:
    """Not an assertion without context."""
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    request = Request(
        model=torch_models.model(seeded(torch_models.Mlp)), handle="cuda:0", platform="cuda"
    )
    with pytest.raises(BuildError, match=r"could not build the module on cuda:0: .*CUDA"):
        load("torch").build(request)


def test_another_name_is_not_torch() -> None:
    """A misspelt name of the family lists what there is."""
    with pytest.raises(UsageError, match=r"unknown runtime 'torch\.script'.*'torch\.compile'"):
        load("torch.script")


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("how", ["module", "exported", "traced", "scripted"])
def test_modules_as_exporters_give_them_run(how: str) -> None:
    """By position where that is how the inputs came: what was exported takes no names."""
    dense = torch.nn.Bilinear(8, 8, 4).eval()
    given = [np.ones((2, 8), np.float32), np.full((2, 8), 2.0, np.float32)]
    tensors = tuple(map(torch.from_numpy, given))
    module = {
        "module": lambda: dense,
        "exported": lambda: torch.export.export(dense, tensors).module(),
        "traced": lambda: torch.jit.trace(dense, tensors),
        "scripted": lambda: torch.jit.script(dense),
    }[how]()
    model = models.load(module, name="m")
    inputs = models.bind(given, models.describe(model), 2, module)
    request = Request(model=model, handle="cpu", platform="cpu")
    with closing(load("torch").build(request)) as build:
        build.stage(inputs)
        build.launch()
        build.synchronize()
        (found,) = build.fetch().values()
    np.testing.assert_allclose(found, dense(*tensors).detach().numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_a_buffer_of_sparse_rows_is_described_by_what_it_holds() -> None:
    def facts(scale: float) -> models.ModelFacts:
        module = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.ones_(module.weight)
        module.register_buffer("table", (scale * torch.eye(8)).to_sparse_csr())
        return models.describe(models.load(module, name="m"))

    assert facts(1.0).tensors == facts(1.0).tensors
    assert facts(1.0).tensors["table"] != facts(2.0).tensors["table"]


def test_what_a_device_s_build_leaves_to_the_cpu_has_the_host_s_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It launches nothing, so a profiler of a GPU gives it no time of the device's."""

    class Profile:
        def __init__(self, activities: object) -> None:
            del activities

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_exc: object) -> None:
            """Nothing to stop."""

        def events(self) -> list[Any]:
            def event(name: str, cpu_us: float, device_us: float) -> Any:
                return SimpleNamespace(
                    name=name,
                    cpu_parent=None,
                    device_type="DeviceType.CPU",
                    cpu_time_total=cpu_us,
                    device_time_total=device_us,
                )

            mm = [event("aten::mm", 5.0, 100e6)]
            return [*mm, event("aten::relu", 6.0, 20e6), event("aten::relu", 80e6, 0.0)]

    activity = SimpleNamespace(CPU="cpu", CUDA="cuda", XPU="xpu")
    monkeypatch.setattr("torch.profiler.ProfilerActivity", activity)
    monkeypatch.setattr("torch.profiler.supported_activities", lambda: {"cpu", "cuda"})
    monkeypatch.setattr("torch.profiler.profile", Profile)
    ops = {
        torch_ops.Op(name=f"aten::{name}", device=device, precision="fp32", view=False): n
        for name, device, n in (("mm", "cuda", 2), ("relu", "cuda", 4), ("relu", "cpu", 1))
    }
    hosted = torch_ops.hosted_by(ops, "cuda")
    assert (hosted, torch_ops.hosted_by(ops, "cpu")) == ({"aten::relu"}, set())
    names = {op.name for op in ops}
    times = torch_ops.kernel_times(
        lambda: None, lambda: None, names=names, device="cuda", runs=1, hosted=hosted
    )
    assert times.busy_s == pytest.approx(120.0)  # the device's own
    uses = torch_ops.uses_of(ops, times.shares)
    found = {(use.kernel.provider, use.kernel.op): use.share for use in uses}
    assert found == {
        ("aten:cpu", "relu"): pytest.approx(0.4),
        ("aten:cuda", "relu"): pytest.approx(0.1),
        ("aten:cuda", "mm"): pytest.approx(0.5),
    }
