"""Makes one form of a model out of another: a torch module to ONNX, fp32 ONNX to half precision."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pytest_portability.errors import BuildError, ModelError, Unsupported
from pytest_portability.models import Arrays
from pytest_portability.runtimes.torch import host_tensor, named_outputs
from pytest_portability.runtimes.torch_settings import weight_dtype

_LOGGER = logging.getLogger(__name__)
_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_CONVERTER = "onnxruntime.transformers.float16"


def export(module: Any, inputs: Arrays, path: Path, *, opset: int = 20) -> dict[str, str]:
    """Write a torch module as an ONNX file with torch's dynamo exporter.

    Inputs keep the names of ``inputs`` (decimal names are positions), outputs get the names that
    the torch runtime gives them, so that the same arrays feed both and parity matches by name.
    The leading dimension is dynamic where inputs share it; a module that cannot have that is
    exported for the given batch alone.

    Args:
        module: in the mode it is to be exported in.
        inputs: one batch, any size; copied.
        path: the file to write; weights beyond 2 GiB go to a file beside it.
        opset: of the default domain; with the exporter it decides which fusions fire.

    Returns:
        Facts for the record: ``exporter``, ``opset``, ``batch`` (``dynamic`` or ``fixed``).

    Raises:
        Unsupported: torch, onnx or onnxscript is not installed.
        BuildError: the exporter refused; its own words.
    """
    torch = _need("torch", f"export a torch module to op-set {opset}")
    for package in ("onnx", "onnxscript"):
        _need(package, f"export a torch module to op-set {opset}")
    facts = {
        "exporter": f"torch.onnx dynamo (torch {torch.__version__}, "
        f"onnxscript {metadata.version('onnxscript')})",
        "opset": str(opset),
        "batch": "dynamic",
    }
    try:
        with _logged_warnings():
            try:
                program = _program(torch, module, inputs, opset, dynamic=True)
            except Exception as exc:  # noqa: BLE001 - the exporter's errors share no base class
                _LOGGER.info("export with a dynamic batch failed: %s: %s", type(exc).__name__, exc)
                program = _program(torch, module, inputs, opset, dynamic=False)
                facts["batch"] = "fixed"
            program.save(str(path))
    except Exception as exc:
        msg = (
            f"torch.onnx could not export {type(module).__name__} to op-set {opset}: "
            f"{type(exc).__name__}: {exc}"
        )
        raise BuildError(msg) from exc
    return facts


def to_precision(source_path: Path, precision: str, out_path: Path) -> dict[str, str]:
    """Convert the weights and work of an fp32 ONNX file to half precision; inputs stay fp32.

    Args:
        source_path: the file to read, external data included.
        precision: ``fp16``; the converter can do no other.
        out_path: the file to write.

    Returns:
        Facts for the record: ``converter`` with its version.

    Raises:
        Unsupported: the converter cannot do this precision, or is not installed.
        ModelError: the file cannot be read.
        BuildError: the converter refused; its own words.
    """
    if precision != "fp16":
        msg = (
            f"{precision}: {_CONVERTER} converts an ONNX file to fp16 only; "
            f"give a model that is already {precision}, with precision 'native'"
        )
        raise Unsupported(msg)
    onnx = _need("onnx", "convert an ONNX file to fp16")
    converter = _need(_CONVERTER, "convert an ONNX file to fp16")
    try:
        model = onnx.load(str(source_path))
    except Exception as exc:
        msg = f"cannot read {str(source_path)!r} as ONNX: {type(exc).__name__}: {exc}"
        raise ModelError(msg) from exc
    try:
        with _logged_warnings():
            half = converter.convert_float_to_float16(model, keep_io_types=True)
            large = half.ByteSize() > _PROTOBUF_LIMIT_BYTES
            onnx.save(half, str(out_path), save_as_external_data=large)
    except Exception as exc:
        msg = f"{_CONVERTER} could not convert {source_path.name!r}: {type(exc).__name__}: {exc}"
        raise BuildError(msg) from exc
    return {"converter": f"{_CONVERTER} {importlib.import_module('onnxruntime').__version__}"}


def _need(package: str, purpose: str) -> Any:
    """Import a package, or say what it is for and how to get it."""
    root = package.partition(".")[0]
    try:
        return importlib.import_module(package)
    except Exception as exc:
        extra = "onnxruntime" if root == "onnxruntime" else "torch"
        vendor = "onnxruntime (or your vendor's build of it)"
        line = vendor if extra == "onnxruntime" else f"'pytest-portability[{extra}]'"
        state = "is not installed" if isinstance(exc, ImportError) else "is present but unusable"
        msg = (
            f"{package} {state}: it is needed to {purpose} for the ONNX runtimes; "
            f"pip install {line} ({type(exc).__name__}: {exc})"
        )
        raise Unsupported(msg) from exc


@contextmanager
def _logged_warnings() -> Iterator[None]:
    """Exporters warn by the dozen about what the user cannot change; keep it for the log."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # four times "torchvision is not installed"
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        registry.setLevel(level)
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        _LOGGER.info("%s", text)


def _program(torch: Any, module: Any, inputs: Arrays, opset: int, *, dynamic: bool) -> Any:
    """An exported program with the names that the arrays have."""
    batch, sharing = _batch(inputs)
    arrays = _doubled(inputs, sharing) if dynamic and batch == 1 else inputs
    tensors = {name: host_tensor(torch, name, array) for name, array in arrays.items()}
    plain, outputs, places = _plain(torch, module, tensors)
    kwargs = {name: tensor for name, tensor in tensors.items() if name not in places}
    dim = torch.export.Dim("batch", min=1)
    shapes = {name: {0: dim} if name in sharing else None for name in tensors}
    with torch.no_grad():
        program = torch.onnx.export(
            plain,
            tuple(tensors[name] for name in places),
            kwargs=kwargs,
            dynamo=True,
            opset_version=opset,
            output_names=outputs,
            dynamic_shapes=_shapes(plain, places, shapes) if dynamic else None,
            verbose=False,
        )
    for value, name in zip(program.model.graph.inputs, places, strict=False):
        value.name = name
    return program


def _batch(inputs: Arrays) -> tuple[int, set[str]]:
    """The leading dimension of the first array that has one, and who shares it."""
    leading = {name: np.shape(array)[0] for name, array in inputs.items() if np.ndim(array)}
    batch = next(iter(leading.values()), 0)
    return batch, {name for name, size in leading.items() if size == batch}


def _doubled(inputs: Arrays, sharing: set[str]) -> Arrays:
    # torch.export takes a dimension of 1 for a constant, so it is shown a batch of 2.
    return {n: np.concatenate([a, a]) if n in sharing else a for n, a in inputs.items()}


def _shapes(module: Any, places: list[str], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Dynamic shapes as torch.export wants them: by the parameters of ``forward``.

    What goes into ``*args`` is one entry under that parameter's name.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    single = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    found: dict[str, Any] = dict(zip(single, (shapes[name] for name in places), strict=False))
    if rest := tuple(shapes[name] for name in places[len(single) :]):
        found[next(p.name for p in parameters if p.kind is p.VAR_POSITIONAL)] = rest
    return found | {name: shape for name, shape in shapes.items() if name not in places}


def _plain(torch: Any, module: Any, tensors: Mapping[str, Any]) -> tuple[Any, list[str], list[str]]:
    """The module, its output names, and which inputs go in by position.

    Where ONNX needs it plainer the module comes wrapped, with all inputs by position. The wrapper
    casts fp32 inputs to half-precision weights and bf16 outputs to fp32, as the torch runtime
    does outside the module, and makes one tuple of whatever the module returns.
    """
    places = sorted((name for name in tensors if name.isdecimal()), key=int)
    names = [name for name in tensors if name not in places]
    dtype = weight_dtype(torch, module)
    halves = {torch.float16, torch.bfloat16}

    def run(*values: Any) -> Any:
        if dtype in halves:
            values = tuple(v.to(dtype) if v.dtype == torch.float32 else v for v in values)
        return module(
            *values[: len(places)], **dict(zip(names, values[len(places) :], strict=True))
        )

    def whole(value: Any) -> Any:
        tensor = torch.as_tensor(value)
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor

    class Plain(torch.nn.Module):  # type: ignore[misc]  # mypy does not follow torch
        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self.training = module.training

        def forward(self, *values: Any) -> Any:
            return tuple(whole(value) for _, value in named_outputs(run(*values)))

    with torch.no_grad():
        result = run(*(tensors[name] for name in (*places, *names)))
    outputs = [name for name, _ in named_outputs(result)]
    parameters = inspect.signature(module.forward).parameters.values()
    sequence = type(result) in {tuple, list} and all(hasattr(v, "dtype") for v in result)
    plain = hasattr(result, "dtype") or sequence
    # torch.export (2.13) fails on dynamic shapes of what goes into **kwargs.
    plain = plain and dtype not in halves and not any(p.kind is p.VAR_KEYWORD for p in parameters)
    return (module, outputs, places) if plain else (Plain(), outputs, [*places, *names])
