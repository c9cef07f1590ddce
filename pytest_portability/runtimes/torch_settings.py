"""Precision, options and toolchain of torch: what can be asked, and what is in force."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_portability.errors import Unsupported, UsageError
from pytest_portability.runtimes import Request, tf32

_SDPA = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option a user may give.

    Attributes:
        valid: the legal values in words, for the message.
        accepts: whether a value is legal.
        apply: puts it in force until the context ends; takes torch and the value.
    """

    valid: str
    accepts: Callable[[Any], bool]
    apply: Callable[[Any, Any], AbstractContextManager[Any]] = lambda _torch, _value: (
        contextlib.nullcontext()
    )


def is_flag(value: Any) -> bool:
    """Whether a value is true or false; 0 and 1 are not."""
    return isinstance(value, bool)


def _is_backends(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list | tuple) and bool(names) and all(n in _SDPA for n in names)


@contextlib.contextmanager
def _swapped(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _attribute(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    return _swapped(lambda: getattr(owner, name), lambda v: setattr(owner, name, v), value)


@contextlib.contextmanager
def _tf32(torch: Any, platform: str, matmul: str, allowed: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        # On an Intel GPU oneDNN does eager products and convolutions; what inductor makes follows
        # the other switches there too. Torch for others warns that this one is without effect, and
        # an older one lacks it and never runs in TF32 there. Not seen on a device.
        if platform == "xpu" and hasattr(torch.backends.mkldnn, "allow_tf32"):
            stack.enter_context(_attribute(torch.backends.mkldnn, "allow_tf32", allowed))
        stack.enter_context(warnings.catch_warnings())
        # torch 2.9 and later advise newer switches, which older ones lack and which, mixed with
        # these anywhere in the process, make reading either an error.
        warnings.filterwarnings("ignore", message="Please use the new API settings")
        stack.enter_context(_matmul(torch, matmul))
        stack.enter_context(_attribute(torch.backends.cudnn, "allow_tf32", allowed))
        yield


def _threads(torch: Any, value: int) -> AbstractContextManager[None]:
    return _swapped(torch.get_num_threads, torch.set_num_threads, value)


def _matmul(torch: Any, value: str) -> AbstractContextManager[None]:
    return _swapped(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)


def _sdpa(torch: Any, value: Any) -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = [value] if isinstance(value, str) else value
    found: AbstractContextManager[Any] = sdpa_kernel([getattr(SDPBackend, _SDPA[n]) for n in names])
    return found


def _deterministic(torch: Any, value: bool) -> AbstractContextManager[None]:
    return _swapped(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, value
    )


OPTIONS: Mapping[str, Option] = {
    "channels_last": Option(valid="true or false", accepts=is_flag),
    "cudnn_benchmark": Option(
        valid="true or false",
        accepts=is_flag,
        apply=lambda torch, value: _attribute(torch.backends.cudnn, "benchmark", value),
    ),
    "deterministic": Option(valid="true or false", accepts=is_flag, apply=_deterministic),
    "matmul_precision": Option(
        valid="'highest', 'high' or 'medium'",
        accepts=lambda value: value in ("highest", "high", "medium"),
        apply=_matmul,
    ),
    "num_threads": Option(
        valid="a whole number of at least 1",
        accepts=lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1,
        apply=_threads,
    ),
    "sdpa": Option(
        valid="one or a list of 'math', 'flash', 'efficient', 'cudnn'",
        accepts=_is_backends,
        apply=_sdpa,
    ),
}
"""Name → option; ``channels_last`` is about the module and its inputs, so the build applies it."""


def check_options(options: Mapping[str, Any], known: Mapping[str, Option], runtime: str) -> None:
    """Refuse what does not exist.

    Raises:
        UsageError: an unknown name or an illegal value; the valid ones are listed.
    """
    for name, value in options.items():
        if name not in known:
            msg = f"unknown option {name!r} for runtime {runtime!r}; valid: {', '.join(known)}"
            raise UsageError(msg)
        if not known[name].accepts(value):
            msg = f"option {name!r} of runtime {runtime!r} is {value!r}; valid: {known[name].valid}"
            raise UsageError(msg)


@contextlib.contextmanager
def in_force(torch: Any, request: Request) -> Iterator[None]:
    """Put the switches of the precision, then the user's options, in force for this process."""
    with contextlib.ExitStack() as stack:
        asked = {"fp32": ("highest", False), "tf32": ("high", True)}.get(request.precision)
        if asked:
            stack.enter_context(_tf32(torch, request.platform, *asked))
        for name, value in request.options.items():
            if name in OPTIONS:
                stack.enter_context(OPTIONS[name].apply(torch, value))
        yield


def refusal(precision: str, platform: str) -> str:
    """Why a precision cannot be done on a platform, as far as known without torch."""
    if precision == "tf32" and platform not in ("cuda", "xpu"):
        where = "NVIDIA GPUs (sm_80 and later) and Intel GPUs with matrix engines"
        return f"TF32 is switched on {where} only, not on {platform!r}"
    return ""


def autocast(torch: Any, request: Request, device: Any) -> Any:
    """Make the autocast context of each run, which one run after the other enters.

    ``fp16`` and ``bf16`` are autocast: weights stay as they are, the operators that gain from it
    run in half precision, as mixed-precision serving does. A module converted with ``.half()`` is
    ``native``.

    Raises:
        Unsupported: no autocast for that dtype on this device.
    """
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(request.precision)
    available = torch.amp.is_autocast_available(device.type)
    if half is None:
        ambient = available and torch.is_autocast_enabled(device.type)
        if request.precision == "native" or not ambient:
            return contextlib.nullcontext()  # switching off what is off costs 4 us a run
        return torch.autocast(device.type, enabled=False)
    if not available:
        msg = f"{request.precision}: torch {torch.__version__} has no autocast on {device.type!r}"
        raise Unsupported(msg)
    try:
        return torch.autocast(device.type, dtype=half)
    except (RuntimeError, ValueError) as exc:
        msg = f"{request.precision}: {exc}"
        raise Unsupported(msg) from exc


def weight_dtype(torch: Any, module: Any) -> Any:
    """The one floating-point dtype of a module's weights; None for none, or for a mixture."""
    tensors = [*module.parameters(), *module.buffers()]
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    return next(iter(dtypes)) if len(dtypes) == 1 else None


def check_precision(torch: Any, request: Request) -> None:
    """Hold the precision asked for against the platform and the weights there are.

    Raises:
        Unsupported: the platform does not have it, or the weights are of another precision.
    """
    if reason := refusal(request.precision, request.platform):
        raise Unsupported(reason)
    if request.precision == "tf32":
        _check_tf32(torch, request)
    module = request.model.value
    dtype = weight_dtype(torch, module)
    if request.precision in {"fp32", "tf32"} and dtype in {torch.float16, torch.bfloat16}:
        msg = (
            f"{request.precision}: the module's weights are {dtype}; call .float() on it, "
            "or ask for 'native'"
        )
        raise Unsupported(msg)
    if request.precision == "int8" and not _is_quantised(torch, module):
        msg = (
            "int8: the module holds no int8 weights; quantise it first (torch.ao, torchao), "
            "this plugin does not"
        )
        raise Unsupported(msg)


def _check_tf32(torch: Any, request: Request) -> None:
    msg = ""
    if not _has_tf32(torch, torch.device(request.handle)):
        old = f"{request.handle} is older than sm_80 and has no TF32"
        unknown = f"{request.handle}: torch {torch.__version__} knows of no TF32 on it"
        msg = f"tf32: {unknown if request.platform == 'xpu' else old}"
    elif request.platform == "cuda" and tf32.forbidden():
        msg = "tf32: NVIDIA_TF32_OVERRIDE=0 in the environment switches it off"
    if msg:
        raise Unsupported(msg)


def _is_quantised(torch: Any, module: Any) -> bool:
    words = {torch.int8, torch.uint8, torch.qint8, torch.quint8}
    tensors = (*module.parameters(), *module.buffers())
    classes = (type(part).__module__ for part in module.modules())
    return any(t.dtype in words for t in tensors) or any("quantized" in c for c in classes)


def _has_tf32(torch: Any, device: Any) -> bool:
    if device.type != "xpu":
        return bool(torch.cuda.get_device_capability(device) >= tf32.FIRST_CAPABILITY)
    switch = hasattr(torch.backends.mkldnn, "allow_tf32")
    if not switch or not hasattr(torch.xpu, "is_tf32_supported"):
        return False
    with torch.xpu.device(device):  # it answers for the current one
        return bool(torch.xpu.is_tf32_supported())


def runs_tf32(torch: Any, device: Any, name: str) -> bool:
    """Whether an fp32 operator runs in TF32: by the switch of its library, on a GPU that has it.

    The switch is all there is to see: the operator's dtype stays float32. On Intel's GPUs it is
    oneDNN's for products and convolutions, by torch's source; not seen on a device.
    """
    product = re.search(r"mm$|addmm|baddbmm|linear$|matmul", name)
    if device.type == "xpu":
        onednn = bool(product) or "convolution" in name
        allowed = onednn and getattr(torch.backends.mkldnn, "allow_tf32", False)
        return bool(allowed) and _has_tf32(torch, device)
    if device.type != "cuda" or torch.version.hip is not None or tf32.forbidden():
        return False
    convolution = re.search(r"convolution|_rnn|lstm|gru", name)
    if not (convolution or product) or not _has_tf32(torch, device):
        return False
    owner = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
    try:
        return bool(owner.allow_tf32)
    except RuntimeError:  # the module used the newer switches, which must not be mixed with these
        newer = torch.backends.cudnn.conv if convolution else torch.backends.cuda.matmul
        return bool(newer.fp32_precision == "tf32")


def options_in_force(torch: Any, request: Request, device: Any) -> dict[str, str]:
    """Read the switches that decide what runs, name → value as text."""
    found = {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
    }
    with contextlib.suppress(RuntimeError):  # raised when old and new switches were mixed
        found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    if device.type == "cpu":
        found["num_threads"] = torch.get_num_threads()
    if device.type == "cuda":
        found["cudnn.benchmark"] = torch.backends.cudnn.benchmark
        with contextlib.suppress(RuntimeError):
            found["cudnn.allow_tf32"] = torch.backends.cudnn.allow_tf32
    if device.type == "xpu" and hasattr(torch.backends.mkldnn, "allow_tf32"):
        found["mkldnn.allow_tf32"] = torch.backends.mkldnn.allow_tf32
    found["autocast"] = {"fp16": "float16", "bf16": "bfloat16"}.get(request.precision, "off")
    asked = {
        name: value for name, value in request.options.items() if name in {"channels_last", "sdpa"}
    }
    return {name: str(value) for name, value in sorted((found | asked).items())}


def toolchain(torch: Any) -> dict[str, str]:
    """Versions of the libraries that torch computes with; those it does not have are left out."""
    text = torch.__config__.show()  # the only place that tells oneDNN's and MKL's versions
    onednn = re.search(r"MKL-DNN v([\d.]+)|oneDNN v([\d.]+)", text)
    mkl = re.search(r"Math Kernel Library Version (\S+?)-", text)
    hip = getattr(torch.version, "hip", None)
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": hip,
        "xpu": getattr(torch.version, "xpu", None),
        "miopen" if hip else "cudnn": cudnn,
        "onednn": onednn and (onednn[1] or onednn[2]),
        "mkl": mkl and mkl[1],
    }
    return {name: str(value) for name, value in found.items() if value}
