"""The options a user may set for ONNX Runtime, checked, over the defaults for measuring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_portability import onnx_graph
from pytest_portability.errors import UsageError
from pytest_portability.models import Model
from pytest_portability.runtimes import Request
from pytest_portability.runtimes.onnxruntime_providers import Provider

_LEVELS = ("disable_all", "basic", "extended", "layout", "all")
_MODES = ("sequential", "parallel")
_SESSION_OPTIONS: Mapping[str, type] = {
    "intra_op_num_threads": int,
    "inter_op_num_threads": int,
    "graph_optimization_level": str,
    "execution_mode": str,
    "enable_cpu_mem_arena": bool,
    "enable_mem_pattern": bool,
    "enable_mem_reuse": bool,
    "use_deterministic_compute": bool,
}
_OPTION_GROUPS = ("config", "provider", "free_dimensions", "disabled_optimizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a session, checked.

    Attributes:
        session: attribute of ``SessionOptions`` → value.
        config: session configuration entries.
        provider: options of the execution provider.
        free_dimensions: name of a symbolic dimension → its fixed value.
        disabled_optimizers: names of graph optimisers to leave out.
    """

    session: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    provider: Mapping[str, str] = field(default_factory=dict)
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()

    def as_text(self) -> dict[str, str]:
        """Name → value, as records keep options."""
        groups = {"config": self.config, "provider": self.provider}
        text = {name: str(value) for name, value in self.session.items()}
        for group, entries in {**groups, "free_dimensions": self.free_dimensions}.items():
            text |= {f"{group}.{name}": str(value) for name, value in entries.items()}
        if self.disabled_optimizers:
            text["disabled_optimizers"] = ",".join(self.disabled_optimizers)
        return dict(sorted(text.items()))


def settings(runtime: str, options: Mapping[str, Any]) -> Settings:
    """Check the user's options.

    Args:
        runtime: name of the runtime, for messages.
        options: attributes of ``SessionOptions`` by name, and the groups ``config``, ``provider``
            and ``free_dimensions`` (mappings) and ``disabled_optimizers`` (a sequence of names).

    Raises:
        UsageError: unknown option or wrong type; the valid ones are listed.
    """
    valid = {*_SESSION_OPTIONS, *_OPTION_GROUPS}
    for name in options:
        if name not in valid:
            msg = f"unknown option {name!r} for {runtime}; valid: {', '.join(sorted(valid))}"
            raise UsageError(msg)
    session = {n: _checked(runtime, n, options[n]) for n in _SESSION_OPTIONS if n in options}
    groups = {}
    for group in _OPTION_GROUPS[:3]:
        value = options.get(group, {})
        if not isinstance(value, Mapping):
            raise _wrong(runtime, group, "a mapping from name to value", value)
        groups[group] = value
    disabled = options.get("disabled_optimizers", ())
    if isinstance(disabled, (str, bytes)) or not isinstance(disabled, (Sequence, set)):
        raise _wrong(runtime, "disabled_optimizers", "a list of optimiser names", disabled)
    return Settings(
        session=session,
        config={str(k): _text(v) for k, v in groups["config"].items()},
        provider={str(k): _text(v) for k, v in groups["provider"].items()},
        free_dimensions={str(k): int(v) for k, v in groups["free_dimensions"].items()},
        disabled_optimizers=tuple(sorted(map(str, disabled))),
    )


def _checked(runtime: str, name: str, value: Any) -> Any:
    kind = _SESSION_OPTIONS[name]
    if kind is str:
        names = _LEVELS if name == "graph_optimization_level" else _MODES
        plain = str(value).lower().removeprefix("ort_").removeprefix("enable_")
        if plain not in names:
            raise _wrong(runtime, name, f"one of {', '.join(names)}", value)
        return plain
    fits = isinstance(value, bool) if kind is bool else type(value) is int and value >= 0
    if not fits:
        wanted = "True or False" if kind is bool else "a whole number of threads, 0 or more"
        raise _wrong(runtime, name, wanted, value)
    return value


def _wrong(runtime: str, name: str, wanted: str, value: object) -> UsageError:
    return UsageError(f"option {name!r} of {runtime} must be {wanted}; given was {value!r}")


def _text(value: object) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True)
    return str(int(value)) if isinstance(value, bool) else str(value)


def in_force(provider: Provider, request: Request) -> Settings:
    """The user's options over those for the precision over the defaults for measuring."""
    asked = settings(provider.runtime, request.options)
    config = {}
    if request.platform == "cpu":
        # Spinning threads take the cores from the neighbours and from the yardstick.
        config = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    switches = dict(provider.switches.get(request.precision, {}))
    for name in switches.keys() & asked.provider.keys():
        switches[name] = _merged(switches[name], asked.provider[name])
    return replace(
        asked, config={**config, **asked.config}, provider={**asked.provider, **switches}
    )


def caching(provider: Provider, request: Request, chosen: Settings) -> dict[str, str]:
    """Provider options that keep what it compiles for the next repeat; the folder is made.

    They are no part of ``Settings``: a session's folder in a record would change it each time. The
    folder is for one model, precision and set of options, as engines are stored under names that
    weights and switches are no part of. What the user set stays. Empty where there is nothing to
    keep, no folder for it, or compiling is quick: on a CPU.
    """
    options = dict(provider.cache)
    if provider.profiled_cache and not _symbolic(request.model.value):
        options |= provider.profiled_cache
    if not request.cache_dir or not options or request.platform == "cpu":
        return {}
    digest = _identity(request.model)
    digest.update(json.dumps([request.precision, chosen.as_text()]).encode())
    folder = Path(request.cache_dir) / provider.short / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    ours = {name: value.format(folder=folder.as_posix()) for name, value in options.items()}
    given = chosen.provider
    return {n: _merged(ours[n], given[n]) if n in given else ours[n] for n in ours}


def _symbolic(proto: Any) -> bool:
    """Whether an input has a dimension without a number."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    shapes = [value.type.tensor_type.shape.dim for value in inputs]
    return any(not dim.HasField("dim_value") for shape in shapes for dim in shape)


def _identity(model: Model) -> Any:
    """Hash of a model's bytes; of external weights, which may be huge, by file, size and time."""
    if model.path is None:
        return hashlib.sha256(model.value.SerializeToString())
    digest = hashlib.sha256(model.path.read_bytes())
    for name in sorted(onnx_graph.external_files(model.value)):
        facts = (model.path.parent / name).stat()
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    return digest


def _merged(ours: str, theirs: str) -> str:
    """The user's value; where both are JSON tables of devices, theirs on top of ours."""
    try:
        mine, users = json.loads(ours), json.loads(theirs)
    except ValueError:
        return theirs
    if not isinstance(mine, dict) or not isinstance(users, dict):
        return theirs
    return json.dumps({d: {**mine.get(d, {}), **users.get(d, {})} for d in {**mine, **users}})


__all__ = ["Settings", "caching", "in_force", "settings"]
