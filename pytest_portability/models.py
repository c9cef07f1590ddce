"""What a model is before it is built: kind, weights, graph, framework, op-set, signature."""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_portability import onnx_graph
from pytest_portability.errors import InputsError, ModelError, PortabilityError

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
"""Named arrays in the model's own order. A torch module's positional-only inputs are named by
their position as a decimal string."""

Dim = int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, NumPy dtype name and shape of one input or output; None is an unknown dimension."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model loaded in this process.

    Attributes:
        kind: ``onnx`` or ``torch``.
        value: an ``onnx.ModelProto`` (may lack external data) or a ``torch.nn.Module`` in the mode
            (training or eval) in which the user gave it.
        path: the ``.onnx`` file, if the model came from one; runtimes read it themselves, which
            keeps external data working.
    """

    kind: str
    value: Any
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What identifies a model, whatever it is built for.

    Attributes:
        kind: ``onnx`` or ``torch``.
        framework: producer and version, such as ``pytorch 2.13.0``; empty where unknown.
        opset: domain → version; empty for a torch module.
        weights: order-free hash over names, dtypes, shapes and bytes.
        tensors: tensor name → short digest.
        graph: structural hash, blind to names, order, metadata and data layout; empty for torch.
        parameters: number of weight elements.
        inputs: required inputs (initialisers are not), in order.
        outputs: outputs in order; empty for a torch module, whose outputs only a run tells.
        notes: findings that may explain a difference, such as ``{"mode": "training"}``.
    """

    kind: str
    framework: str
    opset: Mapping[str, int]
    weights: str
    tensors: Mapping[str, str]
    graph: str
    parameters: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def signature(arrays: Arrays) -> tuple[TensorSpec, ...]:
    """The concrete signature of named arrays."""
    return tuple(
        TensorSpec(name=name, dtype=np.asarray(a).dtype.name, shape=np.shape(a))
        for name, a in arrays.items()
    )


# --- loading ------------------------------------------------------------------------------------

_ACCEPTED = (
    "a path of an .onnx file, an onnx.ModelProto, a torch.nn.Module, "
    "or a callable without arguments that returns one of these"
)


def load(source: object, *, name: str = "model") -> Model:
    """Load a model without changing it; a torch module keeps the mode it is in.

    Args:
        source: a path of an ``.onnx`` file, an ``onnx.ModelProto``, a ``torch.nn.Module``, or a
            callable without arguments that returns one of these.
        name: the model's name, for messages.

    Raises:
        ModelError: no such file, not ONNX, data missing, op-set too new, another type of object,
            or a factory that raised.
    """
    if callable(source) and not _is_torch(source):
        try:
            made = source()
        except (PortabilityError, MemoryError):
            raise
        except BaseException as exc:  # sys.exit() too: it would end the process without a word
            factory = getattr(source, "__name__", None) or repr(source)
            msg = f"{name}: the factory {factory} raised {raised(exc)}"
            raise ModelError(msg) from exc
        if callable(made) and not _is_torch(made):
            msg = f"{name}: the factory {source!r} returned another callable; it must return "
            raise ModelError(msg + _ACCEPTED.partition(", or a callable")[0])
        return load(made, name=name)
    if isinstance(source, (str, Path)):
        path = Path(source)
        return Model(kind="onnx", value=onnx_graph.read(path, name), path=path)
    if _is_torch(source):
        return Model(kind="torch", value=source)
    if type(source).__name__ == "ModelProto" and hasattr(source, "SerializeToString"):
        onnx_graph.check(source, name, "the given ModelProto", None)
        return Model(kind="onnx", value=source)
    msg = f"{name}: asked to load an object of type {type(source)!r}; a model is {_ACCEPTED}"
    raise ModelError(msg)


def _is_torch(source: object) -> bool:
    # An instance of a module cannot exist without torch, so torch need not be imported to ask.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.nn.Module)


def raised(exc: BaseException) -> str:
    """What the user's code raised, and on which of its lines where that is known."""
    # Libraries and this package are not where the user has to look.
    others = {Path(__file__).parent, *map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib")))}
    frames = [
        f"in {frame.name}, line {frame.lineno}"
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith(("<frozen ", "<__array_function__"))
        and not {"site-packages", "dist-packages"} & {*Path(frame.filename).parts}
        and not others & {*Path(frame.filename).parents}
    ]
    return f"{type(exc).__name__}: {exc}" + (f" ({frames[-1]})" if frames else "")


# --- describing ---------------------------------------------------------------------------------


def describe(model: Model) -> ModelFacts:
    """What identifies a model: weights, graph, framework, op-set and signature.

    Reads every weight once (about 1 GB/s).
    """
    return _describe_onnx(model) if model.kind == "onnx" else _describe_torch(model)


def _describe_onnx(model: Model) -> ModelFacts:
    proto = model.value
    base = str(model.path.parent) if model.path else ""
    excluded = onnx_graph.constants(proto)
    weights = [
        (tensor.name, _array(tensor, base, model.path))
        for graph in onnx_graph.graphs(proto)
        for tensor in graph.initializer
        if tensor.name not in excluded
    ]
    total, tensors, parameters = _weights(weights)
    initial = {tensor.name for tensor in proto.graph.initializer}
    return ModelFacts(
        kind="onnx",
        framework=_framework(proto.producer_name, proto.producer_version),
        opset={entry.domain: entry.version for entry in proto.opset_import},
        weights=total,
        tensors=tensors,
        graph=onnx_graph.structure(proto),
        parameters=parameters,
        inputs=tuple(_spec(v) for v in proto.graph.input if v.name not in initial),
        outputs=tuple(_spec(v) for v in proto.graph.output),
    )


def _describe_torch(model: Model) -> ModelFacts:
    import torch

    state = model.value.state_dict()
    weights = [(name, _torch_array(name, value)) for name, value in state.items()]
    total, tensors, parameters = _weights(weights)
    return ModelFacts(
        kind="torch",
        framework=_framework("pytorch", torch.__version__),
        opset={},
        weights=total,
        tensors=tensors,
        graph="",
        parameters=parameters,
        inputs=(),
        notes={"mode": "training"} if model.value.training else {},
    )


def _framework(producer: str, version: str) -> str:
    # "2.13.0+cpu" and "2.13.0+cu130" export the same file: the build flavour is not the version.
    return f"{producer} {version.partition('+')[0]}".strip()


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor as the hash sees it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


def _array(tensor: Any, base: str, path: Path | None) -> _Bytes:
    from onnx import numpy_helper

    try:
        return _bytes(numpy_helper.to_array(tensor, base_dir=base))
    except (KeyError, TypeError, ValueError) as exc:
        found = f"dims {[*tensor.dims]}, {type(exc).__name__}: {exc}"
        msg = f"{path or 'the given ModelProto'}: weight {tensor.name!r} is corrupt ({found})"
        raise ModelError(msg) from exc


def _bytes(array: Array) -> _Bytes:
    if array.dtype.kind in "OUS":
        parts = [item if isinstance(item, bytes) else str(item).encode() for item in array.flat]
        data: bytes | memoryview = b"".join(b"%d:%s" % (len(part), part) for part in parts)
        return _Bytes("object", array.shape, data)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _Bytes(array.dtype.name, array.shape, flat.data)


def _torch_array(name: str, value: Any) -> _Bytes:
    import torch

    if not isinstance(value, torch.Tensor):  # a module may keep "extra state" of any type
        return _Bytes(type(value).__name__, (), repr(value).encode())
    if value.is_meta:
        msg = (
            f"the weight {name!r} is on torch's meta device and has no data; load the weights "
            "before the model is given to portability.check"
        )
        raise ModelError(msg)
    sparse = value.layout is not torch.strided  # COO, CSR and their like
    dense = value.detach().to_dense() if sparse else value.detach()
    flat = dense.cpu().contiguous().reshape(-1)
    # NumPy has no bfloat16 or float8, every dtype has bytes.
    data = flat.view(torch.uint8).numpy().data
    return _Bytes(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)


def _weights(tensors: Iterable[tuple[str, _Bytes]]) -> tuple[str, dict[str, str], int]:
    """Order-free hash of all, short digest of each, and the number of elements."""
    total, short, elements = hashlib.sha256(), {}, 0
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        head = f"{tensor.dtype}\0{tensor.shape}\0".encode()
        digest = hashlib.sha256(head)
        digest.update(tensor.data)
        total.update(name.encode() + b"\0" + head + digest.digest())
        short[name] = digest.hexdigest()[:8]
        elements += int(np.prod(tensor.shape, dtype=np.int64))
    return total.hexdigest()[:_HEX], short, elements


_HEX = 32
"""128 bits identify a model; a longer hash only makes the record's lines longer."""


def _spec(value: Any) -> TensorSpec:
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        return TensorSpec(name=value.name, dtype=value.type.WhichOneof("value") or "", shape=())
    tensor = value.type.tensor_type
    # Some exporters write −1 for a dimension that they do not know.
    dims: list[Dim] = [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
        for d in tensor.shape.dim
    ]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return TensorSpec(name=value.name, dtype=dtype, shape=tuple(dims))


def digest(arrays: Arrays) -> str:
    """Hash of named inputs: names, order, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for name, array in arrays.items():
        tensor = _bytes(np.asarray(array))
        total.update(f"{name}\0{tensor.dtype}\0{tensor.shape}\0".encode())
        total.update(tensor.data)
    return total.hexdigest()[:_HEX]


# --- inputs -------------------------------------------------------------------------------------

Inputs = Mapping[str, Array] | Sequence[Array]


def bind(
    inputs: Inputs, facts: ModelFacts, batch: int | None, module: object | None = None
) -> Arrays:
    """Name the user's inputs and check them against the model and the item's batch.

    Args:
        inputs: mapping by name (keyword arguments of a torch module), or sequence in the model's
            order; NumPy arrays of exactly the model's dtypes. They are not copied, but
            for those in another byte order than this machine's.
        facts: of the model.
        batch: the item's batch, which the leading dimension of at least one input must be (the
            dimension named after the batch, where the model has one elsewhere); None to skip.
        module: the torch module, whose ``forward`` names the inputs.

    Raises:
        InputsError: what was asked, what was given, what is valid.
    """
    if facts.kind == "onnx":
        arrays = _named(inputs, [spec.name for spec in facts.inputs])
        for spec in facts.inputs:
            _check_input(spec, arrays[spec.name])
    else:
        arrays = _arguments(inputs, module)
    if batch is not None:
        _check_batch(arrays, facts, batch)
    return arrays


def _named(inputs: Inputs, names: Sequence[str]) -> Arrays:
    wanted = f"the model takes {_listed(names)}"
    if isinstance(inputs, Mapping):
        missing = [name for name in names if name not in inputs]
        unknown = [str(name) for name in inputs if name not in names]
        if missing or unknown:
            found = "; ".join(
                f"{what} {_listed(which)}"
                for what, which in (("missing", missing), ("unknown", unknown))
                if which
            )
            msg = f"the inputs do not fit: {wanted}; {found}"
            raise InputsError(msg)
        return {name: _is_array(name, inputs[name]) for name in names}
    given = _sequence(inputs)
    if len(given) != len(names):
        msg = f"the inputs do not fit: {wanted}; given were {len(given)} arrays"
        raise InputsError(msg)
    return {name: _is_array(name, array) for name, array in zip(names, given, strict=True)}


def _arguments(inputs: Inputs, module: object | None) -> Arrays:
    """Names of a torch module's inputs: parameters of ``forward``, or positions without names."""
    parameters = _parameters(module)
    if isinstance(inputs, Mapping):
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            optional = {p.name for p in parameters if p.default is not p.empty}
            _named(inputs, [n for n in names if n in inputs or n not in optional])
        return {str(name): _is_array(str(name), array) for name, array in inputs.items()}
    given = _sequence(inputs)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    required = [p.name for p in positional if p.default is p.empty]
    if len(given) < len(required) or (len(given) > len(positional) and not variadic):
        names = [p.name for p in positional]
        msg = (
            f"the inputs do not fit: forward takes {_listed(names)}; given were {len(given)} arrays"
        )
        raise InputsError(msg)
    # Once *args follow, every argument has to go by position.
    by_name = len(given) <= len(positional)
    names = [
        p.name if by_name and p.kind is p.POSITIONAL_OR_KEYWORD else str(position)
        for position, p in enumerate(positional[: len(given)])
    ]
    names += [str(position) for position in range(len(names), len(given))]
    return {name: _is_array(name, array) for name, array in zip(names, given, strict=True)}


def _parameters(module: object | None) -> list[inspect.Parameter]:
    """Those of ``forward``; none where it does not tell, as one that was traced."""
    try:
        return list(inspect.signature(module.forward).parameters.values())  # type: ignore[union-attr]
    except (AttributeError, TypeError, ValueError):
        return []


def _sequence(inputs: object) -> Sequence[Any]:
    if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
        return inputs
    msg = (
        f"inputs are a mapping from name to NumPy array or a sequence of NumPy arrays; given was "
        f"{_kind(inputs)}" + ("; put it into a list" if isinstance(inputs, np.ndarray) else "")
    )
    raise InputsError(msg)


def _is_array(name: str, value: object) -> Array:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        # ONNX Runtime reads the bytes of another order as they are.
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    advice = "use its .numpy()" if hasattr(value, "numpy") else "use numpy.asarray(value, dtype)"
    msg = f"input {name!r} must be a NumPy array; given was {_kind(value)}: {advice}"
    raise InputsError(msg)


def _check_input(spec: TensorSpec, array: Array) -> None:
    dtype = "object" if array.dtype.kind in "US" else array.dtype.name
    if dtype != spec.dtype:
        msg = (
            f"input {spec.name!r} must be {spec.dtype}; given was {array.dtype.name}: "
            f"use array.astype({spec.dtype!r}), which is not done silently as it may change values"
        )
        raise InputsError(msg)
    fixed = all(
        not isinstance(asked, int) or asked == found
        for asked, found in zip(spec.shape, array.shape, strict=False)
    )
    if len(spec.shape) != array.ndim or not fixed:
        msg = (
            f"input {spec.name!r} must have shape {_shape(spec.shape)}; "
            f"given was {_shape(array.shape)}"
        )
        raise InputsError(msg)


def _check_batch(arrays: Arrays, facts: ModelFacts, batch: int) -> None:
    """At least one input must have the item's batch where a batch can be.

    A scalar (a sample rate) or a recurrent state ``[2, batch, 128]`` beside it is fine. A model
    whose dimensions are all fixed may have its batch on any axis.
    """
    specs = {spec.name: spec.shape for spec in facts.inputs}
    dims = [dim for shape in specs.values() for dim in shape]
    fixed = bool(dims) and all(isinstance(dim, int) for dim in dims)
    named = {
        (name, axis)
        for name, shape in specs.items()
        for axis, dim in enumerate(shape)
        if isinstance(dim, str) and ("batch" in dim.lower() or dim.lower() in ("n", "b"))
    }
    if fixed:
        axes = {(name, axis) for name, array in arrays.items() for axis in range(array.ndim)}
    else:
        axes = named or {(name, 0) for name, array in arrays.items() if array.ndim}
    if not arrays or any(arrays[name].shape[axis] == batch for name, axis in axes):
        return
    found = ", ".join(f"{name!r} {_shape(array.shape)}" for name, array in arrays.items())
    advice = (
        "the model's dimensions are all fixed, so set batches= to its own batch or export it with "
        "a dynamic batch"
        if fixed
        else "give inputs as a callable (batch, rng), or set batches= to what they have"
    )
    msg = f"this item's batch is {batch}, and no input has that many samples: {found}; {advice}"
    raise InputsError(msg)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no inputs"


def _shape(shape: Sequence[Dim]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"one array of shape {_shape(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


__all__ = [
    "Array",
    "Arrays",
    "Dim",
    "Inputs",
    "Model",
    "ModelFacts",
    "TensorSpec",
    "bind",
    "describe",
    "digest",
    "load",
    "raised",
    "signature",
]
