"""Records: what is stored of a measurement, as TOML beside the code. Knows files, not verdicts."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_portability.errors import RecordError
from pytest_portability.kernels import Kernel, KernelPath, KernelUse
from pytest_portability.models import TensorSpec
from pytest_portability.outputs import sketch_values
from pytest_portability.parity import Parity
from pytest_portability.records.files import (
    RESTORE,
    Table,
    Tables,
    field_values,
    locked,
    parse,
    parsed,
    plain,
    replace,
    significant,
    take_fields,
)
from pytest_portability.records.similar import closest
from pytest_portability.records.text import Layout, merge, render
from pytest_portability.records.types import Accepted, Axis, Figures, Key, ModelVersion, Record

__all__ = [
    "SCHEMA",
    "Accepted",
    "Axis",
    "Figures",
    "Key",
    "ModelVersion",
    "Parity",
    "Record",
    "closest",
    "copy",
    "loads",
    "path_of",
    "read",
    "read_all",
    "read_files",
    "significant",
    "write",
]

SCHEMA = 1

_MIGRATIONS: Mapping[int, Callable[[Tables], Tables]] = {}
"""Schema → what turns a file's tables into those of the next schema. Entries are never removed:
every release reads the files of all earlier ones."""

_LAYOUT = Layout(
    inline=frozenset({"profile", "opset", "source"}),
    repeated=frozenset({"accepted"}),
)
_TITLE = "Recorded by pytest-portability; to update: pytest --portability --update-baselines"


# --- files ----------------------------------------------------------------------------------------


def path_of(directory: Path, model: str, target_id: str) -> Path:
    """``<directory>/<model>/<target-id>.toml``, never outside of the directory.

    A character that some file system or shell would take for something else is percent-encoded,
    so that different names have different files: ``a/b`` is ``a%2Fb``, ``..`` is ``%2E.``.

    Raises:
        RecordError: a name is empty, or too long for a file.
    """
    return directory / _file_name("model", model) / f"{_file_name('target', target_id)}.toml"


def _file_name(what: str, name: str) -> str:
    encoded = "".join(
        c if re.fullmatch(r"[A-Za-z0-9._+=,@()\[\]-]", c) else _percent(c) for c in name
    )
    # A leading dot hides or climbs, a trailing one vanishes on Windows, which also has devices.
    if re.match(r"\.|(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)", encoded):
        encoded = _percent(encoded[0]) + encoded[1:]
    if encoded.endswith("."):
        encoded = encoded[:-1] + _percent(".")
    if not 0 < len(encoded) <= 200:
        limit = f"names a file of {len(encoded)} characters; it must be 1 to 200: use a shorter one"
        msg = f"the {what} name {name[:60]!r} {limit} (name= of portability.check sets it)"
        raise RecordError(msg)
    return encoded


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def read(path: Path) -> dict[Key, Record]:
    """All records of one file.

    Raises:
        RecordError: it cannot be read, has an unknown key or a wrong type, was written by a newer
            release, or is for another model or target than its path says.
    """
    return _records(path, _migrated(path, parse(path)[1]))


def loads(path: Path, text: str) -> dict[Key, Record]:
    """All records of a file's text, such as a commit holds it.

    Args:
        path: where it would be, for messages, and to see that it belongs there.
        text: what it would hold.

    Raises:
        RecordError: as ``read`` does.
    """
    return _records(path, _migrated(path, parsed(path, text)))


def read_all(directory: Path) -> tuple[dict[Key, Record], tuple[str, ...]]:
    """All records below a directory, and what is wrong with files that cannot be read.

    A file of another model must not hide this one's; the caller says what was wrong.
    """
    return read_files(sorted(directory.glob("*/*.toml")))


def read_files(paths: Iterable[Path]) -> tuple[dict[Key, Record], tuple[str, ...]]:
    """All records of these files, and what is wrong with those that cannot be read."""
    found: dict[Key, Record] = {}
    unreadable = []
    for path in paths:
        try:
            found.update(read(path))
        except RecordError as exc:
            unreadable.append(str(exc))
    return found, tuple(unreadable)


def _migrated(path: Path, tables: Tables) -> Tables:
    """The tables in this release's schema."""
    schema = Table(tables, path).take("schema", "int")
    if schema > SCHEMA:
        msg = (
            f"{path}: key schema is {schema}, this release reads up to {SCHEMA}: it was written "
            "by a newer release; upgrade pytest-portability"
        )
        raise RecordError(msg)
    while schema != SCHEMA:
        if schema not in _MIGRATIONS:
            msg = f"{path}: key schema is {schema}, which no release wrote; {RESTORE}"
            raise RecordError(msg)
        tables = _MIGRATIONS[schema](tables)
        schema += 1
    return {**tables, "schema": schema}


def _records(path: Path, tables: Tables) -> dict[Key, Record]:
    top = Table(tables, path)
    top.take("schema", "int")
    model = top.table("model")
    name = model.take("name", "str")
    target = top.table("target")
    device = {k: target.take(k, "str") for k in ("id", "vendor", "arch", "product", "platform")}
    model.finish()
    target.finish()
    target_id = device.pop("id")
    _check_place(path, name, target_id)
    weights = top.table("weights", {})
    versions = {w: _read_weights(weights.table(w)) for w in weights.values}
    builds = top.table("builds", {})
    top.finish()
    rows = (_read_build(builds.table(r), name, target_id, device, versions) for r in builds.values)
    return {record.key: record for record in rows}


def _check_place(path: Path, model: str, target_id: str) -> None:
    """A file that was copied or renamed must not stand in for another model or target."""
    try:
        expected = path_of(path.parent.parent, model, target_id)
    except RecordError as exc:
        msg = f"{path}: {exc}"
        raise RecordError(msg) from exc
    for what, name, differs in (
        ("model", model, expected.parent.name != path.parent.name),
        ("target", target_id, expected.name != path.name),
    ):
        if differs:
            key = "model.name" if what == "model" else "target.id"
            msg = (
                f"{path}: is for another {what}: key {key} is {name!r}, whose file is {expected}; "
                "move it there; or delete it, and record this one with --update-baselines"
            )
            raise RecordError(msg)


def write(path: Path, records: Mapping[Key, Record]) -> bool:
    """Put rows into a file, beside those it has.

    Args:
        path: of the model and target of all these records, see ``path_of``.
        records: rows to add or to replace. Floats keep five significant digits.

    Returns:
        False if nothing changed; the file is then not touched.

    Raises:
        RecordError: the file cannot be read or written, or a record does not belong in it. The
            file is as it was.
    """
    for key, record in records.items():
        if record.key != key:
            msg = f"{path}: the record of {record.key} was given as that of {key}"
            raise RecordError(msg)
        _check_place(path, key.model, key.target)
    if not records:
        return False
    with locked(path):
        return _write(path, records)


def copy(source: Path, path: Path) -> bool:
    """Put a whole file, which ``read`` has read, where there is none yet.

    Returns:
        False if it was there already, byte for byte.

    Raises:
        RecordError: it cannot be read or written, or another one came to be there meanwhile.
    """
    text, _ = parse(source)
    with locked(path):
        if not path.exists():
            replace(path, text)
            return True
        if parse(path)[0] == text:
            return False
    msg = f"{path}: was written by another process meanwhile; merge again"
    raise RecordError(msg)


def _write(path: Path, records: Mapping[Key, Record]) -> bool:
    if not path.exists():
        return _replaced(path, render(_tables(path, records), _LAYOUT, _TITLE))
    text, raw = parse(path)
    existing = _records(path, _migrated(path, raw))
    old = _tables(path, existing)
    new = _tables(path, {**existing, **records}, next(iter(records.values())))
    current = raw["schema"] == SCHEMA
    if current and old == new:
        return False
    return _replaced(path, merge(text, old if current else {}, new, _LAYOUT))


def _replaced(path: Path, text: str) -> bool:
    """Replace the file, unless the new text could not be read again."""
    _records(path, _migrated(path, parsed(path, text)))
    replace(path, text)
    return True


def _tables(path: Path, records: Mapping[Key, Record], target: Record | None = None) -> Tables:
    """The whole file; ``target`` is the record that describes the target as it is now."""
    if not records:
        return {}
    one = target or next(iter(records.values()))
    names = _weights_names(records.values())
    builds: dict[str, Tables] = {}
    for key, record in sorted(records.items()):
        if key.row in builds:
            msg = f"{path}: two builds are called {key.row!r}; rename a dimension of the profile"
            raise RecordError(msg)
        builds[key.row] = _build(record, names[_weights_content(record.model)])
    weights = {name: json.loads(content) for content, name in names.items()}
    return {
        "schema": SCHEMA,
        "model": {"name": one.key.model},
        "target": {
            "id": one.key.target,
            "vendor": one.vendor,
            "arch": one.arch,
            "product": one.product,
            "platform": one.platform,
        },
        "builds": builds,
        "weights": weights,
    }


# --- rows -----------------------------------------------------------------------------------------

_AXES = ("wall", "busy")
_POSITIVE = ("throughput", "items", "repeats", "wall_s", "batch_effective")
_MAY_BE_UNKNOWN = ("wall_ratio", "busy_ratio", "yardstick_s")
"""NaN where the yardstick failed, or a coarse clock saw no time pass."""
_ROW_SKIP = ("key", "model", "vendor", "arch", "product", "platform", "figures", "path", "parity")
_SHARED = ("weights", "tensors", "parameters", "config")  # of ModelVersion: what builds can share


def _weights_content(model: ModelVersion) -> str:
    """What builds of the same weights share, as canonical text."""
    content = {
        "hash": model.weights,
        "parameters": model.parameters,
        "config": model.config,
        "tensors": model.tensors,
    }
    return json.dumps({k: plain(v) for k, v in content.items() if v != {}})


def _weights_names(records: Iterable[Record]) -> dict[str, str]:
    """Content → name of its table: the start of the weights' hash, longer where that is taken."""
    contents = {_weights_content(r.model): r.model.weights[:12] or "none" for r in records}
    taken = Counter(contents.values())
    return {
        content: name
        if taken[name] == 1
        else f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        for content, name in sorted(contents.items(), key=lambda item: (item[1], item[0]))
    }


def _build(record: Record, weights: str) -> Tables:
    """The table of one row; ``weights`` is the name of its table of weights."""
    key, path = record.key, record.path
    parity = field_values(record.parity, ("input_specs", "outputs"))
    parity["input_specs"] = [_spec(s) for s in record.parity.input_specs]
    parity["outputs"] = [_spec(s) for s in record.parity.outputs]
    return {
        "runtime": key.runtime,
        "precision": key.precision,
        "batch": key.batch,
        **({"profile": dict(key.profile)} if key.profile else {}),
        "figures": _figures(record.figures),
        **({"accepted": [field_values(a) for a in record.accepted]} if record.accepted else {}),
        **field_values(record, (*_ROW_SKIP, "accepted")),
        "model": {**field_values(record.model, _SHARED), "weights": weights},
        "kernels": {**field_values(path, ("uses",)), "path": [_use(u) for u in _sorted(path)]},
        "parity": parity,
    }


def _figures(figures: Figures) -> Tables:
    rest = field_values(figures, ("items", *_AXES))
    found: Tables = {"throughput": rest.pop("throughput"), "unit": rest.pop("unit")}
    # a count: exact, not rounded
    found |= {"items": float(figures.items), "repeats": rest.pop("repeats")}
    for name in _AXES:
        axis = getattr(figures, name)
        for key, value in field_values(axis).items() if axis is not None else ():
            found[f"{name}_{'s' if key == 'seconds' else key}"] = value
    return {**found, **rest}


def _sorted(path: KernelPath) -> list[KernelUse]:
    return sorted(path.uses, key=lambda use: (use.kernel, use.launches))


def _use(use: KernelUse) -> Tables:
    return {**field_values(use.kernel), **field_values(use, ("kernel",))}


def _spec(spec: TensorSpec) -> Tables:
    shape = [-1 if dim is None else dim for dim in spec.shape]
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape}


def _read_weights(table: Table) -> Tables:
    found = {
        "weights": table.take("hash", "str"),
        "parameters": table.take("parameters", "int"),
        "config": table.mapping("config", "str"),
        "tensors": table.mapping("tensors", "str"),
    }
    table.finish()
    return found


def _read_build(
    table: Table, model: str, target: str, device: Tables, weights: Mapping[str, Tables]
) -> Record:
    key = Key(
        model=model,
        target=target,
        profile=tuple(table.mapping("profile", "int").items()),
        **{k: table.take(k, "str") for k in ("runtime", "precision")},
        batch=table.take("batch", "int"),
    )
    if table.path[-1] != key.row:
        msg = f"holds the build {key.row!r}: rename the table, or correct what is in it"
        raise table.error(msg)
    record = Record(
        key=key,
        model=_read_model(table.table("model"), weights),
        figures=_read_figures(table.table("figures")),
        path=_read_kernels(table.table("kernels")),
        parity=_read_parity(table.table("parity")),
        accepted=tuple(Accepted(**_all(Accepted, t)) for t in table.tables("accepted")),
        **device,
        **take_fields(Record, table, (*_ROW_SKIP, "accepted")),
    )
    table.finish()
    return record


def _all(cls: type[Any], table: Table) -> Tables:
    found = take_fields(cls, table)
    table.finish()
    return found


def _read_model(table: Table, weights: Mapping[str, Tables]) -> ModelVersion:
    name = table.take("weights", "str")
    if name not in weights:
        known = ", ".join(map(repr, weights)) or "none"
        msg = f"names the table weights.{name}; there are: {known}"
        raise table.error(msg, "weights")
    found = take_fields(ModelVersion, table, _SHARED)
    table.finish()
    return ModelVersion(**found, **weights[name])


def _read_figures(table: Table) -> Figures:
    axes: Tables = {}
    for name in _AXES:
        keys = (f"{name}_s", f"{name}_ratio", f"{name}_spread_rel")
        if name == "busy" and not any(k in table.values for k in keys):
            axes[name] = None
            continue
        seconds, ratio, spread_rel = (table.take(k, "float") for k in keys)
        unrest_rel = table.take(f"{name}_unrest_rel", "float", None)
        axes[name] = Axis(
            seconds=seconds, ratio=ratio, spread_rel=spread_rel, unrest_rel=unrest_rel
        )
    found = take_fields(Figures, table, _AXES)
    table.finish()
    for key, value in table.values.items():
        _check_figure(table, key, value)
    return Figures(**found, **axes)


def _check_figure(table: Table, key: str, value: object) -> None:
    """Refuse what nothing measured can be: it would silence a comparison."""
    if not isinstance(value, (int, float)) or (key in _MAY_BE_UNKNOWN and math.isnan(value)):
        return
    least = "above 0" if key in _POSITIVE else "not negative"
    least += ", at most 1" if key == "contended" else ""
    beyond = key == "contended" and value > 1
    if not math.isfinite(value) or value < 0 or beyond or (value == 0 and key in _POSITIVE):
        msg = f"must be a finite number, {least}, found {value}; {RESTORE}"
        raise table.error(msg, key)


def _read_kernels(table: Table) -> KernelPath:
    uses = []
    for row in table.tables("path"):
        kernel = Kernel(**take_fields(Kernel, row))
        uses.append(KernelUse(kernel=kernel, **take_fields(KernelUse, row, ("kernel",))))
        row.finish()
    found = take_fields(KernelPath, table, ("uses",))
    _check_figure(table, "busy_s", found["busy_s"])
    table.finish()
    return KernelPath(uses=tuple(uses), **found)


def _read_parity(table: Table) -> Parity:
    specs: Tables = {n: _read_specs(table.tables(n)) for n in ("input_specs", "outputs")}
    found = take_fields(Parity, table, specs)
    for name, text in found["sketches"].items():
        _check_sketch(table.table("sketches"), name, text)
    table.finish()
    return Parity(**found, **specs)


def _check_sketch(table: Table, name: str, text: str) -> None:
    try:
        sketch_values(text)
    except ValueError as exc:
        msg = f"is no sketch of an output ({exc}); {RESTORE}"
        raise table.error(msg, name) from exc


def _read_specs(tables: list[Table]) -> tuple[TensorSpec, ...]:
    found = []
    for table in tables:
        dims = table.take("shape", "list")
        if any(isinstance(d, bool) or not isinstance(d, (int, str)) for d in dims):
            msg = f"must hold sizes or names of dimensions, found {dims!r}"
            raise table.error(msg, "shape")
        shape = tuple(None if d == -1 else d for d in dims)
        found.append(TensorSpec(**take_fields(TensorSpec, table, ("shape",)), shape=shape))
        table.finish()
    return tuple(found)
