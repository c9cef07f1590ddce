"""Opens sessions of ONNX Runtime: provider, device, precision, options, what is kept.

What is given to OpenVINO where it is built in, and to an NPU, is written to the documentation, not
seen on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_portability import onnx_graph
from pytest_portability.errors import RuntimeUnavailable, Unsupported, UsageError
from pytest_portability.runtimes import Request, tf32
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes import onnxruntime_providers as providers
from pytest_portability.runtimes.onnxruntime_options import Settings, caching, settings

_FLOATS = ("fp32", "fp16", "bf16")
"""Precisions that OpenVINO's devices tell in the same letters; an NPU may lack fp32."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The provider and, for one that lists devices, the device of a request."""

    provider: providers.Provider
    device: Any = None


def choose(ort: Any, short: str, request: Request) -> Choice:
    """The provider of that short name, with the device of the request.

    Raises:
        RuntimeUnavailable: no such provider or device here; what there is, is listed.
        UsageError: an option means another device.
    """
    failures: Mapping[str, str] = {}
    built_in = providers.resolve(short, ort.get_available_providers())
    if built_in is None or (built_in.pinned and request.handle != "cpu"):
        # Plugins are loaded only where one is wanted: they bring libraries and threads along.
        failures = library.register_plugins(ort)
    listed = providers.offered(library.ep_devices(ort))
    available = [*ort.get_available_providers(), *(ep for ep, _, _ in listed)]
    provider = providers.resolve(short, available)
    if provider is None:
        raise RuntimeUnavailable(_no_provider(short, available, failures))
    mine = {handle: entry for ep, handle, entry in listed if ep == provider.ep}
    if provider.pinned and not mine:
        _check_pinned(provider, request)
        mine = {"cpu": None}
    if provider.short == "cpu" or not mine:
        return Choice(provider)
    if request.handle not in mine:
        msg = f"{provider.runtime} has no device {request.handle!r}; it has: {', '.join(mine)}"
        reasons = [f"{package}: {reason}" for package, reason in failures.items()]
        raise RuntimeUnavailable("; ".join([msg, *reasons]))
    return Choice(provider, mine[request.handle])


def _check_pinned(provider: providers.Provider, request: Request) -> None:
    """Refuse an option that moves a provider that lists no devices from the CPU to another.

    Raises:
        UsageError: what was given, and how that device is measured.
    """
    given = settings(provider.runtime, request.options).provider
    for name in (*provider.pinned, "device_id"):  # the latter is an older name, and followed
        if given.get(name, "CPU").upper() != "CPU":
            msg = (
                f"option {name!r} of {provider.runtime} must be 'CPU'; given was {given[name]!r}: "
                "the provider that is built into this onnxruntime lists no devices, and is "
                "measured as the CPU. For a GPU or an NPU use the plugin (pip install "
                "onnxruntime-ep-openvino), or the runtime 'openvino'"
            )
            raise UsageError(msg)


def _no_provider(short: str, available: Sequence[str], failures: Mapping[str, str]) -> str:
    found = sorted({p.short for ep in available if (p := providers.of_ep(ep)).computes})
    idle = {absent.name: absent.reason for absent in library.without_device(available, failures)}
    reasons = [f"{package}: {reason}" for package, reason in {**failures, **idle}.items()]
    msg = f"onnxruntime.{short}: no such provider is here; this onnxruntime has: {', '.join(found)}"
    return "; ".join([msg, *reasons])


def check_precision(choice: Choice, request: Request) -> None:
    """Hold the precision asked for against provider, environment, device and model.

    Raises:
        Unsupported: it cannot be had here.
    """
    precision, runtime = request.precision, choice.provider.runtime
    reason = choice.provider.supports(precision)
    reason = reason or providers.needs_environment(choice.provider, precision)
    if not reason and (choice.provider.platform, precision) == ("cuda", "tf32"):
        found = tf32.capability(index_of(request))
        if found is not None and found < tf32.FIRST_CAPABILITY:
            reason = f"the device is an sm_{found[0]}{found[1]}; TF32 begins with sm_80"
    if not reason and precision == "int8" and not onnx_graph.quantised(request.model.value):
        reason = "int8 is for models that come quantised; this one has no quantised nodes"
    metadata = choice.device.ep_metadata if choice.device is not None else {}
    capabilities = metadata.get("OPTIMIZATION_CAPABILITIES", "").split()
    if capabilities and precision in _FLOATS and precision.upper() not in capabilities:
        reason = f"the device says that it computes {', '.join(capabilities)}"
    if reason:
        msg = f"{runtime}: {precision}: {reason}"
        raise Unsupported(msg)


def session_options(ort: Any, chosen: Settings) -> Any:
    """New ``SessionOptions`` with what was chosen."""
    made = ort.SessionOptions()
    for name, value in chosen.session.items():
        if name == "graph_optimization_level":
            member = "ORT_DISABLE_ALL" if value == "disable_all" else f"ORT_ENABLE_{value.upper()}"
            made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, member)
        elif name == "execution_mode":
            made.execution_mode = getattr(ort.ExecutionMode, f"ORT_{value.upper()}")
        else:
            setattr(made, name, value)
    for name, value in chosen.config.items():
        made.add_session_config_entry(name, value)
    for name, value in chosen.free_dimensions.items():
        made.add_free_dimension_override_by_name(name, value)
    # Without it the session does not keep which provider took which node.
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return made


def index_of(request: Request) -> int:
    """Position of the device among those of its kind."""
    return int(request.handle.partition(":")[2] or 0)


def open_session(
    ort: Any,
    choice: Choice,
    request: Request,
    chosen: Settings,
    make: Callable[[], Any],
    *,
    keep: Mapping[str, str] | None = None,
) -> Any:
    """A session, which keeps what it compiles where the provider can.

    Args:
        ort: the package.
        choice: provider and device.
        request: what to build.
        chosen: options in force.
        make: gives new ``SessionOptions``: a try that failed leaves its own with the provider in.
        keep: provider options in place of those that keep what is compiled.
    """
    cache = caching(choice.provider, request, chosen) if keep is None else keep
    given = {**chosen.provider, **cache}
    try:
        return _opened(ort, choice, request, replace(chosen, provider=given), make())
    except Exception as exc:
        # A provider option that this build does not know yet is an error.
        if not any(name in str(exc) for name in cache):
            raise
    return _opened(ort, choice, request, chosen, make())


def _opened(ort: Any, choice: Choice, request: Request, chosen: Settings, options: Any) -> Any:
    model = request.model
    source = str(model.path) if model.path else model.value.SerializeToString()
    # By default a failing provider prints a line and the session silently moves to the CPU.
    keywords: dict[str, Any] = {"enable_fallback": 0}
    if chosen.disabled_optimizers:
        keywords["disabled_optimizers"] = list(chosen.disabled_optimizers)
    provider = choice.provider
    if choice.device is not None:
        options.add_provider_for_devices([choice.device], dict(chosen.provider))
    else:
        # OpenVINO takes the CPU where nothing is said, by its documentation; here it is said.
        given = {**provider.pinned, **chosen.provider}
        index = request.handle.partition(":")[2]
        if index and provider.platform in ("cuda", "rocm", "directml", "cann"):
            given.setdefault("device_id", index)
        keywords["providers"] = [(provider.ep, given)]
    return ort.InferenceSession(source, options, **keywords)


__all__ = ["Choice", "check_precision", "choose", "index_of", "open_session", "session_options"]
