"""What is inside the nodes that a provider compiles: who tells it, and how a trace takes it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_portability import onnx_graph
from pytest_portability.errors import BuildError, ChildFailed
from pytest_portability.kernels import KernelUse
from pytest_portability.models import Arrays
from pytest_portability.runtimes import (
    Request,
    coreml_plan,
    migraphx_runs,
    migraphx_trace,
    tensorrt_layers,
)
from pytest_portability.runtimes.onnxruntime_profile import Profile
from pytest_portability.servers import Servers

LIMIT_S = 60.0
"""Most that a process of its own may take: the item's time goes on, and at its end all is lost."""

WAITED = "MIGraphX was made to wait for each instruction: the shares of short ones are too large"
NAMED = (
    "TensorRT's engines tell the names of their layers only: neither types nor implementations are "
    "known"
)
PLANNED = (
    "Core ML's operations are planned, not seen to run: each is shown on the device that Core ML "
    "prefers for it; nodes of other providers were seen to run"
)
ESTIMATED = "shares of Core ML's operations are its estimates of their cost, not times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced session, whose life is over.

    Attributes:
        request: what was built.
        inputs: what it ran on.
        runs: how often.
        options: of the provider, in force.
        folder: where ``settings`` had things left.
    """

    request: Request
    inputs: Arrays
    runs: int
    options: Mapping[str, str]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Kernels, and what they cannot tell.

    Attributes:
        caveats: one sentence each.
        about_shares: the caveat that goes with shares, and is left out with them.
        planned: some are what a compiler intends, and were not seen to run.
    """

    uses: tuple[KernelUse, ...]
    caveats: tuple[str, ...] = ()
    about_shares: str = ""
    planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Teller:
    """Who tells what is inside a provider's nodes.

    Attributes:
        ep: ONNX Runtime's name of the provider.
        nodes: what its nodes are, for a caveat.
        tell: the kernels; whatever it raises is the reason why there are none.
        settings: provider options with which a session leaves in a folder what ``tell`` reads
            there, given those that keep what the measured builds compiled; None for no need.
    """

    ep: str
    nodes: str
    tell: Callable[[Traced], Told]
    settings: Callable[[Path, Mapping[str, str]], Mapping[str, str]] | None = None


def _tensorrt(traced: Traced) -> Told:
    layers = tensorrt_layers.read(traced.folder)
    named = onnx_graph.op_by_name(traced.request.model.value)
    caveats = (NAMED,) if tensorrt_layers.names_only(layers) else ()
    return Told(uses=tensorrt_layers.uses(layers, named), caveats=caveats)


def _migraphx(traced: Traced) -> Told:
    # MIGraphX reads the variable when it runs its first program and keeps the answer for the life
    # of the process; in this one the measured build has run.
    arguments = (traced.request, traced.inputs, traced.runs)
    text = _apart(migraphx_runs.printed, *arguments, environment={migraphx_trace.VARIABLE: "1"})
    source = onnx_graph.op_types(traced.request.model.value)
    return Told(uses=migraphx_trace.uses(text, source), about_shares=WAITED)


def _coreml(traced: Traced) -> Told:
    # Core ML was seen to abort the process that asks for a plan (apple/coremltools #2757).
    units = traced.options.get("MLComputeUnits", "ALL")
    plans = _apart(coreml_plan.read, traced.folder, units)
    return Told(
        uses=coreml_plan.uses(plans), caveats=(PLANNED,), about_shares=ESTIMATED, planned=True
    )


def _apart(function: Callable[..., Any], *args: object, environment: Any = None) -> Any:
    """The value of a function called in a process of its own."""
    try:
        with Servers(fork=False) as fresh:
            return fresh.call(function, *args, environment=environment, time_limit_s=LIMIT_S)
    except ChildFailed as exc:
        msg = str(exc).partition(" (the ini key")[0]  # which sets the limit of items, not this one
        raise BuildError(msg) from exc


_TELLERS: Mapping[str, _Teller] = {
    "tensorrt": _Teller(
        ep=tensorrt_layers.PROVIDER,
        nodes="TensorRT's engines",
        tell=_tensorrt,
        settings=lambda folder, kept: tensorrt_layers.settings(
            folder, kept.get("trt_timing_cache_path", "")
        ),
    ),
    "migraphx": _Teller(ep=migraphx_trace.PROVIDER, nodes="MIGraphX's programs", tell=_migraphx),
    "coreml": _Teller(
        ep=coreml_plan.PROVIDER,
        nodes="Core ML's models",
        tell=_coreml,
        settings=lambda folder, _kept: coreml_plan.settings(folder),
    ),
}
"""Short name of a provider → who tells."""


def settings(short: str, folder: Path, kept: Mapping[str, str]) -> Mapping[str, str] | None:
    """Provider options of the traced session in place of those that keep what it compiles.

    Args:
        short: of the provider.
        folder: an empty one.
        kept: those of the measured builds.

    Returns:
        None where the session is to be opened as the measured builds are.
    """
    teller = _TELLERS.get(short)
    return teller.settings(folder, kept) if teller is not None and teller.settings else None


def inside(short: str, found: Profile, traced: Traced) -> Told:
    """A profile's kernels, those inside compiled nodes in place of the nodes where they are told.

    Where others have nodes too, the shares of what is told are left out: they are of another whole.
    """
    profiled = Told(uses=found.uses, caveats=found.caveats)
    teller = _TELLERS.get(short)
    others = tuple(use for use in found.uses if not (teller and _compiled(use, teller.ep)))
    if teller is None or len(others) == len(found.uses):
        return profiled
    try:
        told = teller.tell(traced)
    except Exception as exc:  # noqa: BLE001 - a device's library raises anything; all is a reason
        why = str(exc).partition("\n")[0] or type(exc).__name__
        caveat = f"{teller.nodes} are shown as one node each: {why}"
        return replace(profiled, caveats=(*found.caveats, caveat))
    uses = told.uses if not others else tuple(replace(use, share=None) for use in told.uses)
    timed = all(use.share is not None for use in uses)
    # All that the profile of one provider regrets is that it has no times.
    more = (told.about_shares,) if timed and told.about_shares else found.caveats
    return Told(uses=(*others, *uses), caveats=(*more, *told.caveats), planned=told.planned)


def _compiled(use: KernelUse, ep: str) -> bool:
    """Whether it is a node of that provider that computes; copies to and from it are no part."""
    return use.kernel.provider == ep and use.kernel.role == "compute"


__all__ = ["ESTIMATED", "NAMED", "PLANNED", "WAITED", "Told", "Traced", "inside", "settings"]
