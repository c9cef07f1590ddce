"""An ONNX file and its graph: reading, nodes, structural hash. Never runs or builds anything."""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_portability.errors import ModelError


def read(path: Path, name: str) -> Any:
    """The ``onnx.ModelProto`` in a file, without its external data, which is only looked for.

    Args:
        path: an ``.onnx`` file.
        name: the model's name, for messages.

    Raises:
        ModelError: no such file, not ONNX, truncated, data missing, or op-set too new.
    """
    if not path.is_file():
        found = "a directory" if path.is_dir() else "no such file"
        msg = (
            f"{name}: asked to load {str(path)!r}, found {found}; give "
            f"the path of an .onnx file (relative ones start at {str(Path.cwd())!r})"
        )
        raise ModelError(msg)
    try:
        import onnx  # noqa: PLC0415 - heavy
    except ImportError as exc:
        msg = f"{name}: {str(path)!r} needs the package onnx ({exc}): pip install onnx"
        raise ModelError(msg) from exc
    data = path.read_bytes()
    if data.startswith(b"version https://git-lfs"):
        msg = f"{name}: {str(path)!r} is a Git LFS pointer, not the model; run git lfs pull"
        raise ModelError(msg)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as exc:  # protobuf's DecodeError, whose package onnx hides
        msg = (
            f"{name}: {str(path)!r} ({len(data)} bytes) is truncated or not an ONNX file ({exc}); "
            "export or download it again"
        )
        raise ModelError(msg) from exc
    if not proto.HasField("graph") or not proto.opset_import:
        msg = (
            f"{name}: {str(path)!r} ({len(data)} bytes) holds no ONNX graph with an op-set: it is "
            "truncated or not an ONNX file; export or download it again"
        )
        raise ModelError(msg)
    check(proto, name, repr(str(path)), path.parent)
    return proto


def check(proto: Any, name: str, where: str, folder: Path | None) -> None:
    """Op-set known, external data present.

    Args:
        proto: an ``onnx.ModelProto``.
        name: the model's name, for messages.
        where: what the proto came from, for messages.
        folder: where its external data lies, None if nowhere.

    Raises:
        ModelError: data missing or op-set too new.
    """
    _check_version(proto, name, where)
    _check_external(proto, folder, name)


def _check_version(proto: Any, name: str, where: str) -> None:
    import onnx  # noqa: PLC0415 - heavy

    newest = onnx.defs.onnx_opset_version()
    asked = {entry.domain: entry.version for entry in proto.opset_import}.get("", 0)
    if asked > newest:
        msg = (
            f"{name}: {where} uses op-set {asked}; the installed onnx {onnx.__version__} knows "
            f"op-sets up to {newest}. Install a newer onnx (and onnxruntime), or export with "
            f"opset_version={newest} or lower"
        )
        raise ModelError(msg)


def _check_external(proto: Any, folder: Path | None, name: str) -> None:
    """Every external tensor must lie in a file below the model's folder that is long enough."""
    for tensor in external_tensors(proto):
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        what = f"{name}: tensor {tensor.name!r} keeps its data in the file {location!r}"
        if folder is None:
            msg = (
                f"{what}, but the ModelProto came without a path; give the .onnx file's path, or "
                "onnx.load(path), which reads the data too"
            )
            raise ModelError(msg)
        file = folder / location
        if not file.resolve().is_relative_to(folder.resolve()):
            msg = f"{what}, outside the model's folder {str(folder)!r}; move it beside the model"
            raise ModelError(msg)
        if not file.is_file():
            msg = f"{what}, which is not in {str(folder)!r}; copy it beside the .onnx file"
            raise ModelError(msg)
        needed = int(entry.get("offset", 0)) + int(entry.get("length", 0))
        if file.stat().st_size < needed:
            msg = (
                f"{what}, which has {file.stat().st_size} bytes where {needed} are needed: it is "
                "truncated or belongs to another model; export or download both again"
            )
            raise ModelError(msg)


def inputs(graph: Any) -> list[str]:
    """Names of the inputs that have to be given: those without a default."""
    constant = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in constant]


def reads(node: Any) -> list[str]:
    """Names of the tensors that a node reads, those that its subgraphs capture included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            inner_reads = [name for inner in graph.node for name in reads(inner)]
            inner_reads += [value.name for value in graph.output]
            names += [name for name in inner_reads if name not in own]
    return names


def cut(proto: Any, tensor: str) -> Any:
    """The model up to one tensor of its main graph, which is its only output.

    ``onnx.utils.Extractor`` does the same but for what subgraphs capture, which it drops.

    Args:
        proto: with inferred types.
        tensor: name of a tensor that a node makes and whose type is known.
    """
    from onnx import helper  # noqa: PLC0415 - heavy

    whole = proto.graph
    wanted, kept = {tensor, *inputs(whole)}, []
    for node in reversed(whole.node):
        if wanted.intersection(node.output):
            wanted.update(reads(node))
            kept.append(node)
    known = {value.name: value for value in (*whole.value_info, *whole.output)}
    graph = helper.make_graph(
        kept[::-1],
        whole.name,
        [value for value in whole.input if value.name in wanted],
        [known[tensor]],
        [weight for weight in whole.initializer if weight.name in wanted],
        value_info=[v for name, v in known.items() if name in wanted and name != tensor],
        sparse_initializer=whole.sparse_initializer,
    )
    return helper.make_model(
        graph,
        ir_version=proto.ir_version,
        opset_imports=proto.opset_import,
        functions=proto.functions,
    )


_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "MatMulInteger", "ConvInteger")


def graphs(proto: Any) -> Iterator[Any]:
    """The main graph and every subgraph of its control-flow nodes."""
    pending = [proto.graph]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def op_by_name(proto: Any) -> dict[str, str]:
    """Op type by the names that runtimes give a node: its own, or one of its outputs'."""
    return {
        name: node.op_type
        for node in proto.graph.node
        for name in (node.name, *node.output)
        if name and node.op_type != "Constant"
    }


def op_types(proto: Any) -> dict[str, int]:
    """Op type → number of nodes, subgraphs included, ``Constant`` left out; sorted by name."""
    counts = Counter(node.op_type for graph in graphs(proto) for node in graph.node)
    return {op: n for op, n in sorted(counts.items()) if op != "Constant"}


def quantised(proto: Any) -> bool:
    """Whether the model came quantised: it has quantise/dequantise or integer nodes."""
    return any(op.startswith(_QUANTISED) or "NBits" in op for op in op_types(proto))


def _quantisation_parameters(proto: Any) -> set[str]:
    """Names of scales and zero points: they belong to the quantisation, not to the weights."""
    return {
        name
        for graph in graphs(proto)
        for node in graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
        for name in node.input[1:3]
    }


MOST_CONSTANT = 64
"""Elements of an integer initialiser up to which it is taken for axes, a shape or an index."""


def constants(proto: Any) -> set[str]:
    """Names of initialisers that say what is computed, not with which weights.

    Scales and zero points, scalars such as an epsilon, and short integer ones such as axes.
    """
    from onnx import TensorProto  # noqa: PLC0415 - heavy

    integers = (TensorProto.INT64, TensorProto.INT32)
    small = {
        tensor.name
        for graph in graphs(proto)
        for tensor in graph.initializer
        if not tensor.dims
        or (tensor.data_type in integers and math.prod(tensor.dims) <= MOST_CONSTANT)
    }
    return small | _quantisation_parameters(proto)


def external_tensors(proto: Any) -> Iterator[Any]:
    """Tensors whose data lie in another file."""
    for graph in graphs(proto):
        constants = (a.t for n in graph.node for a in n.attribute if a.HasField("t"))
        for tensor in (*graph.initializer, *constants):
            if tensor.data_location == tensor.EXTERNAL:
                yield tensor


def external_files(proto: Any) -> set[str]:
    """Names of the files, relative to the model's, that hold data."""
    entries = (entry for tensor in external_tensors(proto) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


_FLOATS = {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"}


def float_types(proto: Any) -> set[str]:
    """Names of the floating-point types of inputs, outputs, weights, constants and casts."""
    from onnx import TensorProto  # noqa: PLC0415 - heavy

    kinds: set[int] = set()
    for graph in graphs(proto):
        values = (*graph.input, *graph.output, *graph.value_info)
        kinds |= {value.type.tensor_type.elem_type for value in values}
        kinds |= {tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            kinds |= {a.t.data_type for a in node.attribute if a.HasField("t")}
            kinds |= {a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"}
    return {TensorProto.DataType.Name(kind) for kind in kinds} & _FLOATS


def structure(proto: Any) -> str:
    """Hash of what the outputs are computed from, 32 hexadecimal digits.

    Every value is hashed as its operator, attributes and inputs, from the graph's inputs to its
    outputs; so names, node order, dead nodes, metadata, doc strings, the values of weights and
    where they are stored do not change it. Those of ``constants`` do. Op-sets are a fact of their
    own.
    """
    fixed = constants(proto)
    context = _Context(
        functions={
            (f.domain, f.name): _function(f) for f in getattr(proto, "functions", ()) if f.node
        },
        constants={
            tensor.name: _tensor(tensor)
            for graph in graphs(proto)
            for tensor in graph.initializer
            if tensor.name in fixed
        },
    )
    return _graph(proto.graph, {}, context).hex()[:32]


@dataclass(frozen=True, slots=True)
class _Context:
    """Hashes of a file's functions by domain and name, and of the constants by name."""

    functions: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    constants: Mapping[str, bytes] = field(default_factory=dict)


_Known = Mapping[str, bytes]


def _graph(graph: Any, outer: _Known, context: _Context) -> bytes:
    known: dict[str, bytes] = {}
    for tensor in graph.initializer:
        shape = _hash("init", tensor.data_type, tuple(tensor.dims))
        known[tensor.name] = context.constants.get(tensor.name, shape)
    inputs = [value for value in graph.input if value.name not in known]
    for position, value in enumerate(inputs):
        known[value.name] = _hash("input", position, _type(value.type))
    values = _nodes(graph.node, ChainMap(known, dict(outer)), context)
    outputs = [values.get(value.name, b"") for value in graph.output]
    return _hash("graph", len(inputs), *outputs)


def _function(function: Any) -> bytes:
    known = {name: _hash("input", position) for position, name in enumerate(function.input)}
    values = _nodes(function.node, ChainMap(known), _Context())
    return _hash("function", *(values.get(name, b"") for name in function.output))


def _nodes(nodes: Sequence[Any], known: ChainMap[str, bytes], context: _Context) -> _Known:
    """Hash of every value; ONNX demands that nodes come after the nodes they read from."""
    for node in nodes:
        attributes = sorted(_attribute(a, known, context) for a in node.attribute)
        body = context.functions.get((node.domain, node.op_type), b"")
        # A missing optional input is an empty name and keeps its position.
        inputs = [known.get(name, b"") for name in node.input]
        key = _hash(node.domain, node.op_type, body, *attributes, "inputs", *inputs)
        for position, name in enumerate(node.output):
            known[name] = _hash(key, position)
    return known


def _attribute(attribute: Any, known: _Known, context: _Context) -> bytes:
    kind = attribute.type
    value: Any
    if kind == attribute.TENSOR:
        value = _tensor(attribute.t)
    elif kind == attribute.TENSORS:
        value = [_tensor(tensor) for tensor in attribute.tensors]
    elif kind == attribute.GRAPH:
        value = _graph(attribute.g, known, context)
    elif kind == attribute.GRAPHS:
        value = [_graph(graph, known, context) for graph in attribute.graphs]
    else:
        field = {
            attribute.FLOAT: "f",
            attribute.INT: "i",
            attribute.STRING: "s",
            attribute.FLOATS: "floats",
            attribute.INTS: "ints",
            attribute.STRINGS: "strings",
        }.get(kind)
        found = getattr(attribute, field) if field else attribute.SerializeToString()
        value = list(found) if field and field.endswith("s") and field != "s" else found
    return _hash(attribute.name, attribute.ref_attr_name, kind, value)


def _tensor(tensor: Any) -> bytes:
    if tensor.data_location == tensor.EXTERNAL:
        return _hash(tensor.data_type, tuple(tensor.dims))
    from onnx import numpy_helper  # noqa: PLC0415 - heavy

    array = numpy_helper.to_array(tensor)
    data = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return _hash(tensor.data_type, tuple(tensor.dims), data)


def _type(value: Any) -> object:
    """Dtype and dimensions; the name of a symbolic dimension is a name and does not count."""
    if not value.HasField("tensor_type"):
        return value.WhichOneof("value")
    shape = value.tensor_type.shape.dim
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in shape]
    return value.tensor_type.elem_type, tuple(dims)


def _hash(*parts: object) -> bytes:
    total = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        total.update(b"%d:" % len(data) + data)
    return total.digest()


__all__ = [
    "check",
    "constants",
    "external_files",
    "external_tensors",
    "float_types",
    "graphs",
    "op_types",
    "quantised",
    "read",
    "structure",
]
