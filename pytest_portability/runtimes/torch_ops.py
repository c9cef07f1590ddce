"""The operators an eager module dispatches: counts, device, precision and share of time."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pytest_portability.kernels import Kernel, KernelUse
from pytest_portability.runtimes.tf32 import in_tf32

_WORDS = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float64": "fp64",
    "qint8": "int8",
    "quint8": "int8",
}
_MOVES = {"copy_", "_to_copy", "clone", "_copy_from", "_copy_from_and_resize", "to_mkldnn"}
_MOVES |= {"convert_element_type"}
_LAYOUTS = {"cat", "stack", "index", "index_select", "gather", "embedding", "constant_pad_nd"}
_LAYOUTS |= {"roll", "flip", "repeat", "slice_scatter", "select_scatter", "index_put_"}
_NO_KERNEL = re.compile(
    r"aten::(empty\w*|new_empty\w*|detach|resolve_\w+|lift_fresh|alias|_unsafe_view|_reshape_alias)$"
)
HOSTED = " on the host"
"""After an operator's name: its calls that a build for another device left to the CPU. They launch
nothing, so their time is the host's. Tested with made-up events, not on a device."""

_PRODUCT = re.compile(r"mm|conv|rnn|lstm|gru|attention|(?<!bi)linear|matmul")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Op:
    """One kind of operator call as the dispatcher saw it.

    Attributes:
        name: with its namespace, such as ``aten::addmm``.
        device: device type of its result.
        precision: of its result, as in ``PRECISIONS`` or the dtype's own name; empty if it has
            none. ``int8`` if it works on quantised values.
        view: it only makes another view of its input; nothing runs.
    """

    name: str
    device: str
    precision: str
    view: bool

    @property
    def kernel(self) -> Kernel:
        """The kernel it stands for; eager operators absorb nothing but themselves."""
        short = self.name.removeprefix("aten::")
        return Kernel(
            provider=f"aten:{self.device}",
            op=short,
            role=role(short),
            precision=self.precision,
            absorbs=(short,),
        )


def role(short: str) -> str:
    """``compute``, ``move`` or ``layout`` of an operator's name without ``aten::``."""
    return "move" if short in _MOVES else "layout" if short in _LAYOUTS else "compute"


def precision_word(dtype: Any) -> str:
    """The glossary's word for a torch dtype, such as ``bf16``; its own name if there is none."""
    name = str(dtype).removeprefix("torch.")
    # NVIDIA's, AMD's (fnuz) and those of scales (e8m0fnu).
    return "fp8" if name.startswith("float8_") else _WORDS.get(name, name)


def executed_ops(call: Callable[[], Any]) -> Counter[Op]:
    """Count the operators that a call dispatches.

    Args:
        call: must not be under ``inference_mode``, where composite operators are not taken apart
            and the chosen attention backend stays hidden; runs under ``no_grad``.

    Returns:
        Operator → calls; exact, so that two runs of one build are equal.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: Counter[Op] = Counter()

    class Record(TorchDispatchMode):  # type: ignore[misc]  # mypy does not follow torch
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            tensors = [t for t in _flat((result, args)) if isinstance(t, torch.Tensor)]
            inputs = [t for t in _flat(args) if isinstance(t, torch.Tensor)]
            counts[_op(func, tensors, inputs)] += 1
            return result

    with torch.no_grad(), Record():
        call()
    return counts


def _op(func: Any, tensors: list[Any], inputs: list[Any]) -> Op:
    name = str(func.name()).partition(".")[0]
    precision = precision_word(tensors[0].dtype) if tensors else ""
    quantised = any(precision_word(t.dtype) == "int8" for t in inputs)
    if name.startswith(("quantized::", "onednn::q")) or (quantised and _PRODUCT.search(name)):
        precision = "int8"
    device = str(tensors[0].device.type) if tensors else "cpu"
    return Op(name=name, device=device, precision=precision, view=bool(func.is_view))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for member in value:
            yield from _flat(member)
    else:
        yield value


def kernels_of(ops: Mapping[Op, int]) -> dict[Op, int]:
    """The operators that run something: neither views nor bare allocations."""
    return {op: n for op, n in ops.items() if not op.view and not _NO_KERNEL.match(op.name)}


def hosted_by(ops: Mapping[Op, int], device: str) -> set[str]:
    """Names of operators that a build for another device than the CPU left to the CPU."""
    return {op.name for op in kernels_of(ops) if op.device == "cpu" != device}


def source_of(ops: Mapping[Op, int]) -> dict[str, int]:
    """Operator names without ``aten::`` → calls, views included."""
    counts: Counter[str] = Counter()
    for op, n in ops.items():
        counts[op.name.removeprefix("aten::")] += n
    return dict(sorted(counts.items()))


def uses_of(
    ops: Mapping[Op, int],
    shares: Mapping[str, float],
    is_tf32: Callable[[str], bool] = lambda _name: False,
) -> tuple[KernelUse, ...]:
    """Kernels with launches and share.

    Args:
        ops: what one inference dispatched.
        is_tf32: whether an fp32 operator of that name runs in TF32 here.
        shares: operator name, or with ``HOSTED`` that of its calls on the CPU → share (0–1) of the
            time; missing where not known. Calls of one name in several precisions divide its
            share by their number.
    """
    kernels = kernels_of(ops)
    calls: Counter[str] = Counter()
    timed: dict[Op, str] = {}
    for op, n in kernels.items():
        hosted = op.name + HOSTED
        timed[op] = hosted if op.device == "cpu" and hosted in shares else op.name
        calls[timed[op]] += n
    return tuple(
        KernelUse(
            kernel=in_tf32(op.kernel, is_tf32),
            launches=n,
            share=shares[timed[op]] * n / calls[timed[op]] if timed[op] in shares else None,
        )
        for op, n in sorted(kernels.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """What a profiler tells of time, which is advisory: it takes part of it itself.

    Attributes:
        shares: name (of a hosted call: with ``HOSTED``) → share (0–1) of the wall time of a run.
        busy_s: as in ``KernelPath``.
        caveats: why there are none.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    busy_s: float | None = None
    caveats: tuple[str, ...] = ()


def kernel_times(
    call: Callable[[], Any],
    finish: Callable[[], Any],
    *,
    names: Collection[str],
    device: str,
    runs: int,
    hosted: Collection[str] = (),
) -> KernelTimes:
    """Measure how long each operator takes of a run, children included.

    Args:
        call: one run.
        finish: returns when the work of ``call`` is done.
        names: what to look for; found inside another such name it is part of that one.
        device: device type.
        runs: profiled runs; figures are medians over them, as a neighbour spoils one.
        hosted: names of which some calls run on the CPU though the device is another.
    """
    from torch.profiler import ProfilerActivity, supported_activities

    wanted = {
        "cpu": ProfilerActivity.CPU,
        "cuda": ProfilerActivity.CUDA,
        "xpu": ProfilerActivity.XPU,
    }
    if wanted.get(device) not in supported_activities():
        return KernelTimes(caveats=(f"no time per kernel: torch has no profiler for {device!r}",))
    activities = sorted({ProfilerActivity.CPU, wanted[device]}, key=str)
    call()
    finish()
    shares: list[dict[str, float]] = []
    busy: list[float] = []
    for _ in range(runs):
        try:
            profiler, wall_s = _profiled(call, finish, activities)
        except Exception as exc:  # noqa: BLE001 - a profiler that fails costs the times, no more
            words = f"{type(exc).__name__}: {exc}"
            return KernelTimes(caveats=(f"no time per kernel: torch.profiler failed with {words}",))
        seconds = _seconds(profiler, names, device, hosted)
        whole_s = max(wall_s, sum(seconds.values()))  # several streams or threads may overlap
        shares.append({name: part / whole_s for name, part in seconds.items()})
        busy.append(sum(part for name, part in seconds.items() if not name.endswith(HOSTED)))
    every = dict.fromkeys(name for of_run in shares for name in of_run)
    found = {name: median(of_run.get(name, 0.0) for of_run in shares) for name in every}
    whole = max(1.0, sum(found.values()))  # medians may add up to more than any run
    return KernelTimes(
        shares={name: share / whole for name, share in found.items()},
        busy_s=None if device == "cpu" else median(busy) or None,
    )


def _profiled(
    call: Callable[[], Any], finish: Callable[[], Any], activities: list[Any]
) -> tuple[Any, float]:
    """The profiler after one run, and the run's wall seconds."""
    from torch.profiler import profile

    with profile(activities=activities) as profiler:
        start = time.perf_counter()
        call()
        finish()
        wall_s = time.perf_counter() - start
    return profiler, wall_s


def _seconds(
    profiler: Any, names: Collection[str], device: str, hosted: Collection[str]
) -> Counter[str]:
    """Time by name, of the host on a CPU and of the device elsewhere."""
    launching: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for event in profiler.events():
        name = _plain(event.name)
        if name not in names or _inside(event, names):
            continue
        if device == "cpu":
            launching[name] += event.cpu_time_total * 1e-6
        elif str(event.device_type).endswith("CPU"):
            if name in hosted and not event.device_time_total:
                launching[name + HOSTED] += event.cpu_time_total * 1e-6
            launching[name] += event.device_time_total * 1e-6
        else:
            running[name] += event.device_time_total * 1e-6
    # A generated kernel shows on the device, and where its launch is marked on the host as well.
    return Counter({name: launching[name] or running[name] for name in {*launching, *running}})


def _inside(event: Any, names: Collection[str]) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _plain(parent.name) in names:
            return True
        parent = parent.cpu_parent
    return False


def _plain(name: str) -> str:
    """Without the running prefix ``graph_3_`` that inductor gives its kernels."""
    return re.sub(r"^graph_\d+_", "", name)
