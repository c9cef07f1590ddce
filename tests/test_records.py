"""Record files: what is written is read again, and what is wrong in one is said by name."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_portability import records
from pytest_portability.errors import RecordError
from pytest_portability.kernels import Kernel, KernelPath, KernelUse
from pytest_portability.models import TensorSpec
from pytest_portability.parity import Parity, sketch
from pytest_portability.records import (
    Accepted,
    Axis,
    Figures,
    Key,
    ModelVersion,
    Record,
    closest,
    files,
    path_of,
    read,
    read_all,
    significant,
    write,
)

RELEASED = Path(__file__).parent / "records"
SKETCH = sketch(np.arange(8.0))

ATTENTION = Kernel(
    provider="CPUExecutionProvider",
    op="Attention",
    precision="fp32",
    absorbs=("MatMul", "Softmax"),
)
GELU = Kernel(provider="CPUExecutionProvider", op="BiasGelu", precision="fp32")


def a_record(
    runtime: str = "onnxruntime.cpu",
    batch: int = 8,
    *,
    throughput: float = 1234.5,
    target: str = "cpu-x-2c",
    precision: str = "native",
    **changes: Any,
) -> Record:
    """A small record of the model ``minilm``."""
    values: dict[str, Any] = {
        "key": Key(
            model="minilm", target=target, runtime=runtime, precision=precision, batch=batch
        ),
        "model": ModelVersion(
            kind="onnx",
            framework="pytorch 2.13.0",
            opset={"": 20},
            weights="3fa91c0211112222",
            tensors={"fc.bias": "aaaa1111", "fc.weight": "bbbb2222"},
            graph="99887766",
            parameters=65_792,
            config={"lr": "1e-3"},
        ),
        "vendor": "cpu",
        "arch": "x86_64",
        "product": "X 6.207",
        "platform": "cpu",
        "effective": "fp32",
        "toolchain": {"numpy": "2.4.6", "onnxruntime": "1.32.0"},
        "options": {"intra_op_num_threads": "2"},
        "providers": {"CPUExecutionProvider": 12},
        "threads": 2,
        "graph_breaks": None,
        "compiled": None,
        "figures": Figures(
            throughput=throughput,
            unit="tokens",
            items=131_072.0,
            repeats=2,
            wall=Axis(seconds=0.0064802, ratio=3.3012, spread_rel=0.0041),
            busy=Axis(seconds=0.012304, ratio=6.1, spread_rel=0.003),
            burst_throughput=1300.0,
            latency_p50_s=0.0065,
            latency_p90_s=0.007,
            latency_p99_s=0.01,
            yardstick="gemm-f32-256 numpy-openblas",
            yardstick_s=0.002,
            build_s=0.2,
            first_call_s=0.01,
            memory_device_bytes=None,
            memory_arena_bytes=1_048_576,
            memory_process_bytes=22_222_222,
            batch_effective=batch,
        ),
        "path": KernelPath(
            runtime=runtime,
            uses=(
                KernelUse(kernel=ATTENTION, launches=6, share=0.61),
                KernelUse(kernel=GELU, launches=6, share=0.2),
            ),
            source={"MatMul": 12, "Softmax": 6},
            caveats=("shares are of node time",),
        ),
        "parity": Parity(
            reference="onnxruntime cpu fp32 unoptimised",
            error_rel=2.1e-7,
            floors_rel={"y": 1e-7},
            inputs="c0ffee00",
            input_specs=(TensorSpec(name="x", dtype="float32", shape=(8, 16)),),
            outputs=(TensorSpec(name="y", dtype="float32", shape=(8, 4)),),
            sketches={"y": SKETCH},
            metrics={"margin": 0.2509},
        ),
        "commit": "fb25439",
        "measured": "2026-11-30T05:46:00Z",
    }
    return Record(**{**values, **changes})


def put(directory: Path, *rows: Record) -> Path:
    """Write records of one model and target; the path of their file."""
    path = path_of(directory, rows[0].key.model, rows[0].key.target)
    write(path, {r.key: r for r in rows})
    return path


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    """Lines that differ; both texts must have as many lines."""
    return [p for p in zip(before.split("\n"), after.split("\n"), strict=True) if p[0] != p[1]]


# --- round trip -----------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
number = st.floats(allow_nan=False).map(significant) | st.just(math.nan)
count = st.integers(min_value=0, max_value=2**63)
figure = st.floats(min_value=0, max_value=1e300).map(significant)
positive = st.floats(min_value=1e-300, max_value=1e300).map(significant)
ratio = positive | st.just(math.nan)


def mapping(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A small mapping by any name."""
    return st.dictionaries(text, values, max_size=3)


specs = st.lists(
    st.builds(
        TensorSpec,
        name=text,
        dtype=text,
        shape=st.lists(st.none() | count | text, max_size=3).map(tuple),
    ),
    max_size=2,
).map(tuple)
axes = st.builds(Axis, seconds=positive, ratio=ratio, spread_rel=figure)
kernels = st.builds(
    Kernel,
    provider=text,
    op=text,
    role=text,
    precision=text,
    implementation=text,
    absorbs=st.lists(text, max_size=2).map(tuple),
)
uses = st.lists(
    st.builds(KernelUse, kernel=kernels, launches=count, share=st.none() | number),
    max_size=4,
    unique_by=lambda use: (use.kernel, use.launches),
).map(lambda found: tuple(sorted(found, key=lambda use: (use.kernel, use.launches))))
rows = st.builds(
    Record,
    key=st.builds(
        Key,
        model=st.just("m"),
        target=st.just("t"),
        runtime=text,
        precision=text,
        batch=count,
        profile=st.dictionaries(name, count, max_size=2).map(lambda d: tuple(d.items())),
    ),
    model=st.builds(
        ModelVersion,
        kind=text,
        framework=text,
        opset=mapping(count),
        weights=st.sampled_from(["", "0123456789abcdef", "0123456789abffff", "ü b"]),
        tensors=mapping(text),
        graph=text,
        parameters=count,
        config=mapping(text),
    ),
    vendor=st.just("v"),
    arch=st.just("a"),
    product=st.just('p "1" \x7f\u2028\u0085'),
    platform=st.just("c"),
    effective=text,
    toolchain=mapping(text),
    options=mapping(text),
    providers=mapping(count),
    threads=st.none() | count,
    graph_breaks=st.none() | count,
    compiled=st.none() | st.booleans(),
    figures=st.builds(
        Figures,
        wall=axes,
        busy=st.none() | axes,
        throughput=positive,
        items=positive,
        repeats=st.integers(min_value=1, max_value=20),
        burst_throughput=figure,
        latency_p50_s=figure,
        latency_p90_s=figure,
        latency_p99_s=figure,
        yardstick_s=ratio,
        build_s=figure,
        first_call_s=figure,
        unit=text,
        yardstick=text,
        batch_effective=st.integers(min_value=1, max_value=2**63),
        memory_device_bytes=st.none() | count,
        memory_arena_bytes=st.none() | count,
        memory_process_bytes=st.none() | count,
    ),
    path=st.builds(
        KernelPath,
        runtime=text,
        uses=uses,
        evidence=text,
        source=mapping(count),
        caveats=st.lists(text, max_size=2).map(tuple),
    ),
    parity=st.builds(
        Parity,
        reference=text,
        error_rel=number,
        floors_rel=st.dictionaries(text, number, max_size=2),
        inputs=text,
        input_specs=specs,
        outputs=specs,
        sketches=mapping(st.just(SKETCH)),
        exact=mapping(text),
        metrics=mapping(number),
        repeatable=st.booleans(),
    ),
    commit=text,
    measured=text,
    accepted=st.lists(
        st.builds(Accepted, date=text, reason=text, verdict=text, before=number, after=number),
        max_size=2,
    ).map(tuple),
)
tables = st.lists(rows, min_size=1, max_size=3, unique_by=lambda r: r.key.row).map(
    lambda found: {r.key: r for r in found}
)
fast = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def alike(one: dict[Key, Record], other: dict[Key, Record]) -> bool:
    """Equal, NaN to NaN; from Python 3.13 on a dataclass that holds one is not equal to itself."""
    texts = [
        {key: json.dumps(asdict(record), sort_keys=True) for key, record in some.items()}
        for some in (one, other)
    ]
    return texts[0] == texts[1]


@fast
@given(first=tables, second=tables)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, first: dict[Key, Record], second: dict[Key, Record]
) -> None:
    """Whatever the names and values; a second write adds its rows, and again changes nothing."""
    path = path_of(tmp_path_factory.mktemp("records"), "m", "t")
    assert write(path, first)
    assert alike(read(path), first)
    rows_of = {k.row for k in second}
    second |= {k: r for k, r in first.items() if k.row in rows_of}
    second = {k: r for k, r in second.items() if k in first or k.row not in {f.row for f in first}}
    write(path, second)
    assert alike(read(path), {**first, **second})
    before = path.read_bytes()
    assert not write(path, {**first, **second})
    assert path.read_bytes() == before
    assert list(read(path)) == sorted({**first, **second})


def test_two_directories_get_the_same_bytes(tmp_path: Path) -> None:
    """Order of writing leaves no trace: a merge of two branches has nothing to argue about."""
    one, two = a_record(batch=1), a_record(batch=16)
    first, second = put(tmp_path / "a", two), put(tmp_path / "b", one)
    write(first, {one.key: one})
    write(second, {two.key: two})
    assert first.read_text() == second.read_text()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1234.5678, 1234.6),
        (0.000123456, 0.00012346),
        (0.0, 0.0),
        (-7.0, -7.0),
        (math.inf, math.inf),
    ],
)
def test_significant_rounds_to_five_digits(value: float, expected: float) -> None:
    """Zero and infinity stay."""
    assert significant(value) == expected


def test_the_time_of_an_accelerator_s_kernels_is_kept_and_must_be_one(tmp_path: Path) -> None:
    one = a_record()
    one = replace(one, path=replace(one.path, busy_s=0.0012345))
    path = path_of(tmp_path, one.key.model, one.key.target)
    write(path, {one.key: one})
    assert read(path) == {one.key: one}
    text = path.read_text()
    path.write_text(text.replace("busy_s = 0.0012345", "busy_s = -1.0"))
    with pytest.raises(RecordError, match=r"kernels\.busy_s must be a finite number, not negative"):
        read(path)


def test_figures_are_rounded_and_counts_are_not(tmp_path: Path) -> None:
    """131 072 tokens a batch are not 131 070; a throughput is not known to seven digits."""
    path = put(tmp_path, a_record(throughput=1234.5678))
    (record,) = read(path).values()
    assert record.figures.throughput == 1234.6
    assert record.figures.items == 131_072
    assert "\nthroughput = 1234.6\n" in path.read_text()


@pytest.mark.parametrize("path", sorted(RELEASED.glob("schema_*/*/*.toml")), ids=lambda p: p.name)
def test_released_files_load_for_ever(path: Path, tmp_path: Path) -> None:
    """A file that a release wrote is read by every later one, and not rewritten for nothing."""
    found = read(path)
    copy = put(tmp_path, *found.values())
    shutil.copy(path, copy)
    assert write(copy, found) == (f"\nschema = {records.SCHEMA}\n" not in path.read_text())
    assert read(copy) == found
    assert {k.model for k in found} == {path.parent.name}
    assert all(r.figures.throughput > 0 and r.path.uses for r in found.values())


def test_released_files_hold_what_they_held() -> None:
    """Their content, not only their syntax, is understood."""
    found, _ = read_all(RELEASED / "schema_1")
    assert sorted(
        (k.target, k.row, r.figures.throughput, r.effective) for k, r in found.items()
    ) == [
        ("amd-mi300x", "onnxruntime.migraphx-fp16-b32-seq128", 41250.0, "fp16"),
        ("amd-mi300x", "torch.compile-native-b32-seq128", 28750.0, "bf16"),
        ("cpu-intel-xeon-6.207-2c", "onnxruntime.cpu-native-b1", 142.66, "fp32"),
        ("cpu-intel-xeon-6.207-2c", "onnxruntime.cpu-native-b8", 171.93, "fp32"),
    ]
    accepted = [a for r in found.values() for a in r.accepted]
    assert accepted[0].reason == "ROCm 7.0 lost the fused attention, ROCm#1234"
    uses = found[next(k for k in found if k.row == "onnxruntime.cpu-native-b8")].path.uses
    assert uses[0].kernel.absorbs == ("MatMul", "Softmax")
    assert {u.kernel.op for u in uses if u.kernel.role == "layout"} == {"Reshape"}


# --- updating under comments ----------------------------------------------------------------------


def test_one_changed_value_is_one_changed_line(tmp_path: Path) -> None:
    """The rest of the file keeps its bytes."""
    path = put(tmp_path, a_record(), a_record(batch=1))
    before = path.read_text()
    one = a_record(throughput=999.0)
    assert write(path, {one.key: one})
    assert changed_lines(before, path.read_text()) == [
        ("throughput = 1234.5", "throughput = 999.0")
    ]


def test_every_comment_survives_an_update(tmp_path: Path) -> None:
    """Above headers, above keys, behind values, inside arrays, and at the end."""
    path = put(tmp_path, a_record(), a_record("torch"))
    commented = []
    for number, line in enumerate(path.read_text().split("\n")):
        if line and not line.startswith("#"):
            commented.append(f'# above {number}, with "quotes" and ]')
            commented.append(f"{line}  # behind {number}")
        else:
            commented.append(line)
    path.write_text("\n".join([*commented, "# the end"]))
    markers = re.findall(r"# .*", path.read_text())
    before = path.read_text()
    path_now = KernelPath(
        runtime="onnxruntime.cpu",
        uses=(
            KernelUse(kernel=ATTENTION, launches=6, share=0.5),
            KernelUse(kernel=GELU, launches=6, share=0.2),
        ),
        source={"MatMul": 12, "Softmax": 6},
        caveats=("shares are of node time",),
    )
    one = a_record(throughput=999.0, path=path_now, options={"intra_op_num_threads": "1"})
    assert write(path, {one.key: one})
    after = path.read_text()
    assert sorted(re.findall(r"# .*", after)) == sorted(markers)
    assert [new.partition("  #")[0] for _, new in changed_lines(f"{before}\n", after)] == [
        "throughput = 999.0",
        'intra_op_num_threads = "1"',
        (
            '    { provider = "CPUExecutionProvider", op = "Attention", precision = "fp32", '
            'absorbs = ["MatMul", "Softmax"], launches = 6, share = 0.5 },'
        ),
    ]
    assert read(path)[one.key] == one


def test_a_new_row_is_inserted_in_order_and_parts_no_comment_from_its_row(tmp_path: Path) -> None:
    """Batch 2 comes between 1 and 16, above the comment about 16."""
    path = put(tmp_path, a_record(batch=1), a_record(batch=16))
    header = '[builds."onnxruntime.cpu-native-b16"]'
    path.write_text(path.read_text().replace(header, f"# agreed with Ann\n{header}"))
    before = path.read_text()
    two = a_record(batch=2)
    write(path, {two.key: two})
    after = path.read_text()
    headers = re.findall(r'^\[builds\."([^"]*)"\]$', after, re.MULTILINE)
    assert headers == [f"onnxruntime.cpu-native-b{n}" for n in (1, 2, 16)]
    assert f"# agreed with Ann\n{header}" in after
    assert set(before.split("\n")) <= set(after.split("\n"))


def test_a_removed_key_leaves_the_comment_above_it(tmp_path: Path) -> None:
    """It may be about more than that key; the comment behind it goes with it."""
    path = put(tmp_path, a_record())
    old = 'onnxruntime = "1.32.0"'
    path.write_text(path.read_text().replace(old, f"# the CI image pins these\n{old} # wheel"))
    one = a_record(toolchain={"numpy": "2.4.6"})
    write(path, {one.key: one})
    assert "# the CI image pins these\n" in path.read_text()
    assert "# wheel" not in path.read_text()
    assert read(path)[one.key] == one


def test_digits_somebody_wrote_by_hand_stay(tmp_path: Path) -> None:
    """A row that is not updated is not reformatted, nor is one whose rounded value is the same."""
    path = put(tmp_path, a_record(), a_record("torch"))
    path.write_text(path.read_text().replace("throughput = 1234.5", "throughput = 1_234.501"))
    before = path.read_bytes()
    assert not write(path, {a_record().key: a_record()})
    assert path.read_bytes() == before
    one = a_record(commit="0000000")
    assert write(path, {one.key: one})
    assert changed_lines(before.decode(), path.read_text()) == [
        ('commit = "fb25439"', 'commit = "0000000"')
    ]


def test_other_spellings_of_the_same_tables_are_understood(tmp_path: Path) -> None:
    """Dotted keys, tables on several lines and literal strings are TOML too."""
    path = put(tmp_path, a_record())
    was = path.read_text()
    was = was.replace('\n[model]\nname = "minilm"\n', "\nmodel.name = '''minilm'''\n")
    was = was.replace('opset = { "" = 20 }', 'opset."" = 20 # Gelu')
    was = was.replace("shape = [8, 4]", "shape = [\n8, # batch\n 4]")
    path.write_text(was)
    assert read(path) == {a_record().key: a_record()}
    one = a_record(throughput=999.0)
    assert write(path, {one.key: one})
    assert read(path) == {one.key: one}
    assert 'opset."" = 20 # Gelu\n' in path.read_text()


def test_windows_line_ends_stay(tmp_path: Path) -> None:
    """Git may have checked the file out with CR LF."""
    path = put(tmp_path, a_record())
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert not write(path, {a_record().key: a_record()})
    one = a_record(throughput=999.0)
    assert write(path, {one.key: one})
    data = path.read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n")
    assert read(path) == {one.key: one}


def test_rows_of_a_retrained_model_keep_their_own_weights(tmp_path: Path) -> None:
    """Updating one row says nothing about the others; weights that no row has any more go."""
    path = put(tmp_path, a_record(batch=1), a_record(batch=8))
    retrained = replace(
        a_record().model, weights="77770000aaaabbbb", tensors={"fc.bias": "cccc3333"}
    )
    one = a_record(batch=8, model=retrained)
    write(path, {one.key: one})
    assert {k.batch: r.model.weights for k, r in read(path).items()} == {
        1: "3fa91c0211112222",
        8: "77770000aaaabbbb",
    }
    assert "[weights.77770000aaaa]" in path.read_text()
    other = a_record(batch=1, model=retrained)
    write(path, {other.key: other})
    assert "3fa91c021111" not in path.read_text()


def test_weights_whose_hashes_begin_alike_have_tables_of_their_own(tmp_path: Path) -> None:
    """As have the same weights with another training configuration."""
    other = replace(a_record().model, config={"lr": "2e-3"})
    path = put(tmp_path, a_record(batch=1), a_record(batch=8, model=other))
    assert {k.batch: r.model.config for k, r in read(path).items()} == {
        1: {"lr": "1e-3"},
        8: {"lr": "2e-3"},
    }
    assert len(re.findall(r"^\[weights\.3fa91c021111-[0-9a-f]{8}\]$", path.read_text(), re.M)) == 2


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("minilm", "minilm"),
        ("resnet[b8, fp16]", "resnet[b8,%20fp16]"),
        ("..", "%2E%2E"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        ("C:\\temp", "C%3A%5Ctemp"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        (".git", "%2Egit"),
        ("CON", "%43ON"),
        ("nul.x", "%6Eul.x"),
        ("end.", "end%2E"),
        ("a\0b", "a%00b"),
        ("ü", "%C3%BC"),
        ("\udcff", "%ED%B3%BF"),
    ],
)
def test_names_never_leave_the_directory(tmp_path: Path, model: str, file: str) -> None:
    """Different names have different files, directly below the directory."""
    path = path_of(tmp_path, model, "nvidia-h200")
    assert path == tmp_path / file / "nvidia-h200.toml"
    assert path.resolve().parent.parent == tmp_path.resolve()


def test_a_name_that_makes_no_file_name_is_refused(tmp_path: Path) -> None:
    """With what would help."""
    with pytest.raises(RecordError) as error:
        path_of(tmp_path, "", "nvidia-h200")
    assert str(error.value) == (
        "the model name '' names a file of 0 characters; it must be 1 to 200: use a shorter one "
        "(name= of portability.check sets it)"
    )
    with pytest.raises(RecordError, match=r"the target name 'xxx.* names a file of 201 characters"):
        path_of(tmp_path, "m", "x" * 201)


def test_a_record_with_any_name_can_be_written_and_found(tmp_path: Path) -> None:
    """The name in the file is the test's, not the file's."""
    key = replace(a_record().key, model="../a:b")
    put(tmp_path, a_record(key=key))
    assert list(read_all(tmp_path)[0]) == [key]


def test_all_records_of_no_directory_are_none(tmp_path: Path) -> None:
    """A first run has no baselines."""
    assert read_all(tmp_path / "nowhere") == ({}, ())


# --- what is wrong is said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "repeats = 2",
            "repeats = true",
            (
                'key builds."onnxruntime.cpu-native-b8".figures.repeats must be an integer, '
                "found true; correct it, or restore the file from version control"
            ),
        ),
        (
            "throughput = 1234.5",
            'throughput = "fast"',
            (
                'key builds."onnxruntime.cpu-native-b8".figures.throughput must be a number, '
                'found "fast"; correct it'
            ),
        ),
        ("wall_s = 0.0064802", "", "figures.wall_s is missing; correct it, or restore"),
        ("busy_ratio = 6.1", "", "figures.busy_ratio is missing"),
        ('unit = "tokens"', 'units = "tokens"', "figures.unit is missing"),
        (
            "repeats = 2",
            "repeats = 2\ncolour = 3",
            "figures.colour is unknown; known here: batch_effective, build_s, burst_throughput, ",
        ),
        (
            "schema = 1",
            "schema = 1\nextra = 1",
            "key extra is unknown; known here: builds, model, schema, target, weights; correct or",
        ),
        ("[model]", "[model]\nkind = 'onnx'", "key model.kind is unknown; known here: name;"),
        (
            "parameters = 65792",
            "parameters = 65792\nx = 1",
            "key weights.3fa91c021111.x is unknown",
        ),
        ('hash = "3fa91c0211112222"', "hash = 3", "key weights.3fa91c021111.hash must be a string"),
        (
            'weights = "3fa91c021111"',
            'weights = "0000"',
            "model.weights names the table weights.0000; there are: '3fa91c021111'",
        ),
        (
            "batch = 8",
            "batch = 9",
            (
                'key builds."onnxruntime.cpu-native-b8" holds the build '
                "'onnxruntime.cpu-native-b9': rename the table, or correct what is in it"
            ),
        ),
        (
            "shape = [8, 4]",
            "shape = [8, 4.5]",
            "parity.outputs.0.shape must hold sizes or names of dimensions, found [8, 4.5]",
        ),
        (
            SKETCH,
            "AAAA",
            (
                "parity.sketches.y is no sketch of an output (a sketch is base64 of 65 float32, "
                "this has 3 bytes); correct it"
            ),
        ),
        ('{ "" = 20 }', '{ "" = 2.5 }', 'model.opset."" must be an integer, found 2.5;'),
        ("launches = 6, share = 0.61", "share = 0.61", "kernels.path.0.launches is missing"),
        (
            "share = 0.61",
            "share = 0.61, note = 1",
            (
                "kernels.path.0.note is unknown; known here: "
                "absorbs, implementation, launches, op, precision, provider, role, share;"
            ),
        ),
        ("[target]", "[[target]]", "key target must be a table, found [{"),
        ("schema = 1", f"schema = 1\nx = {'[' * 5000}{']' * 5000}", "is not valid TOML: "),
        (
            "throughput = 1234.5",
            f"throughput = 1{'0' * 400}",
            "throughput is too large for a number",
        ),
        ("throughput = 1234.5", f"throughput = 1{'0' * 5000}", "is not valid TOML: "),
        (
            "throughput = 1234.5",
            "throughput = -5.0",
            "figures.throughput must be a finite number, above 0, found -5.0; correct it",
        ),
        ("throughput = 1234.5", "throughput = nan", "throughput must be a finite number, above 0"),
        ("repeats = 2", "repeats = 0", "figures.repeats must be a finite number, above 0"),
        ("wall_s = 0.0064802", "wall_s = nan", "figures.wall_s must be a finite number, above 0"),
        ("wall_s = 0.0064802", "wall_s = inf", "figures.wall_s must be a finite number, above 0"),
        ("busy_ratio = 6.1", "busy_ratio = -1", "busy_ratio must be a finite number, not negative"),
        (
            "repeats = 2",
            "repeats = 2\nneighbours = -1",
            "figures.neighbours must be a finite number, not negative, found -1",
        ),
        (
            "schema = 1",
            "schema = 2",
            (
                "key schema is 2, this release reads up to 1: it was written "
                "by a newer release; upgrade pytest-portability"
            ),
        ),
        ("schema = 1", "schema = 0", "key schema is 0, which no release wrote; correct it"),
        ("schema = 1", "", "key schema is missing; correct it"),
        (
            "schema = 1",
            "schema = ",
            (
                "is not valid TOML: Invalid value (at line 2, column 10); "
                "correct it, or restore the file from version control"
            ),
        ),
        (
            "schema = 1",
            "<<<<<<< HEAD\nschema = 1",
            "it holds the markers of an unresolved merge: resolve it, one row after the other",
        ),
        (
            'name = "minilm"',
            'name = "other"',
            (
                "is for another model: key model.name is 'other', "
                "whose file is {dir}/other/cpu-x-2c.toml; move it there; or delete it, and record "
                "this one with --update-baselines"
            ),
        ),
        (
            'id = "cpu-x-2c"',
            'id = "amd-mi300x"',
            (
                "is for another target: key target.id is "
                "'amd-mi300x', whose file is {dir}/minilm/amd-mi300x.toml; move it there"
            ),
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """File, key, what was found and what to do; reading all says so and writing refuses."""
    path = put(tmp_path, a_record())
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(RecordError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message.replace("{dir}", str(tmp_path)) in str(error.value)
    assert read_all(tmp_path) == ({}, (str(error.value),))
    before = path.read_bytes()
    with pytest.raises(RecordError):
        write(path, {a_record().key: a_record()})
    assert path.read_bytes() == before


def test_an_integer_is_a_number(tmp_path: Path) -> None:
    """Somebody who writes 1234 by hand means 1234.0."""
    path = put(tmp_path, a_record())
    path.write_text(path.read_text().replace("throughput = 1234.5", "throughput = 1234"))
    assert read(path)[a_record().key].figures.throughput == 1234.0


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Never skipped: a directory in its place, a text in another encoding."""
    path = tmp_path / "minilm" / "cpu-x-2c.toml"
    path.mkdir(parents=True)
    with pytest.raises(RecordError) as error:
        read(path)
    assert str(error.value) == (
        f"{path}: is not a file; correct it, or restore the file from version control"
    )
    path.rmdir()
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(RecordError, match=r"is not UTF-8 \(.* at byte 5\); correct it, or restore"):
        read(path)


def test_a_migration_reads_an_older_schema_and_writing_brings_it_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments stay, values are those of the new schema."""
    path = put(tmp_path, a_record())
    older = path.read_text().replace("schema = 1", "schema = 0 # first")
    path.write_text(older.replace("commit =", "# where\nrevision ="))

    def migrate(tables: dict[str, Any]) -> dict[str, Any]:
        for build in tables["builds"].values():
            build["commit"] = build.pop("revision")
        return tables

    monkeypatch.setattr(records, "_MIGRATIONS", {0: migrate})
    assert read(path) == {a_record().key: a_record()}
    assert write(path, {a_record().key: a_record()})
    assert "schema = 1 # first\n" in path.read_text()
    assert "# where\n" in path.read_text()
    assert read(path) == {a_record().key: a_record()}


def test_a_record_is_not_written_into_the_file_of_another(tmp_path: Path) -> None:
    """Neither of another target nor under another key."""
    other = a_record(target="amd-mi300x")
    with pytest.raises(RecordError, match=r"is for another target: key target\.id is 'amd-mi300x'"):
        write(path_of(tmp_path, "minilm", "cpu-x-2c"), {other.key: other})
    with pytest.raises(RecordError, match=r"the record of .*-b8 on .* given as that of .*-b1 on "):
        write(path_of(tmp_path, "minilm", "cpu-x-2c"), {a_record(batch=1).key: a_record()})
    assert not list(tmp_path.iterdir())


def test_two_builds_of_one_name_are_refused(tmp_path: Path) -> None:
    """``a1`` of size 2 and ``a`` of size 12 would share a table."""
    keys = [replace(a_record().key, profile=p) for p in ((("a1", 2),), (("a", 12),))]
    with pytest.raises(RecordError) as error:
        put(tmp_path, *(a_record(key=k) for k in keys))
    assert str(error.value).endswith(
        "two builds are called 'onnxruntime.cpu-native-b8-a12'; rename a dimension of the profile"
    )


# --- writing at once ------------------------------------------------------------------------------


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """Renaming over it would work, and is not what a read-only file asks for."""
    path = put(tmp_path, a_record())
    path.chmod(0o444)
    one = a_record(throughput=1.0)
    with pytest.raises(RecordError) as error:
        write(path, {one.key: one})
    assert str(error.value) == (
        f"{path}: is read-only; make it writable to update it: chmod u+w {path}"
    )
    assert read(path) == {a_record().key: a_record()}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """A file where the model's directory should be."""
    (tmp_path / "minilm").write_text("")
    with pytest.raises(RecordError) as error:
        put(tmp_path, a_record())
    path = path_of(tmp_path, "minilm", "cpu-x-2c")
    assert re.fullmatch(
        re.escape(f"{path}: cannot be written (") + r"(Not a directory|File exists)"
        r"\); check space and permissions, or choose another directory with "
        r"--portability-baselines",
        str(error.value),
    )


def test_a_failing_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say."""
    path = put(tmp_path, a_record())
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    one = a_record(throughput=1.0)
    with pytest.raises(RecordError, match=r"cannot be written \(No space left on device\)"):
        write(path, {one.key: one})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_text_without_a_utf8_form_is_refused(tmp_path: Path) -> None:
    """A lone surrogate, from a file name perhaps."""
    with pytest.raises(RecordError, match=r"cannot be written: '\\udcff' has no UTF-8 form"):
        put(tmp_path, a_record(commit="\udcff"))
    assert not list(tmp_path.rglob("*.t*"))


def test_the_mode_of_a_file_and_a_link_to_it_stay(tmp_path: Path) -> None:
    """A link to a shared directory stays a link."""
    path = put(tmp_path, a_record())
    real = path.rename(tmp_path / "real.toml")
    real.chmod(0o640)
    path.symlink_to(real)
    one = a_record(throughput=1.0)
    write(path, {one.key: one})
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert read(path) == {one.key: one}


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    """But not what a living one is writing."""
    path = put(tmp_path, a_record())
    old = path.with_name(f".{path.name}.0123abcd.tmp")
    new = path.with_name(f".{path.name}.4567cdef.tmp")
    for stray in (old, new):
        stray.write_text("half")
    os.utime(old, (time.time() - 3600,) * 2)
    one = a_record(throughput=1.0)
    write(path, {one.key: one})
    assert not old.exists()
    assert new.exists()
    assert list(read_all(tmp_path)[0]) == [one.key]


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_records as t
n = 0
while True:
    n += 1
    t.put(Path({directory!r}), *(t.a_record(batch=b, throughput=float(n)) for b in range(1, 9)))
    if n == 1:
        print("writing", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this platform")
def test_a_writer_killed_at_any_time_leaves_a_whole_file(tmp_path: Path) -> None:
    """All eight rows are of one and the same write."""
    code = WRITER.format(tests=str(Path(__file__).parent), directory=str(tmp_path))
    chance = random.Random(7)
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            time.sleep(chance.uniform(0, 0.1))
            writer.kill()
        found, _ = read_all(tmp_path)
        assert len(found) == 8
        assert len({r.figures.throughput for r in found.values()}) == 1


# --- the closest record ---------------------------------------------------------------------------


def shelf() -> dict[Key, Record]:
    """Records of one model on four targets."""
    kinds = {
        "nvidia-h200": ("nvidia", "sm_90"),
        "nvidia-h100": ("nvidia", "sm_90"),
        "nvidia-a100": ("nvidia", "sm_80"),
        "amd-mi300x": ("amd", "gfx942"),
    }
    found = [
        a_record("torch", batch, target=target, vendor=vendor, arch=arch, precision=precision)
        for target, (vendor, arch) in kinds.items()
        for batch in (1, 8)
        for precision in ("native", "fp16")
    ]
    return {r.key: r for r in found}


@pytest.mark.parametrize(
    ("key", "device", "found", "why"),
    [
        (
            ("nvidia-gh200", "torch", "fp16", 8),
            ("sm_90", "nvidia"),
            "nvidia-h100 torch-fp16-b8",
            "the same architecture sm_90; same batch, precision, runtime",
        ),
        (
            ("nvidia-v100", "torch.compile", "fp16", 8),
            ("sm_70", "nvidia"),
            "nvidia-a100 torch-fp16-b8",
            "no record on sm_70; the same vendor nvidia; same batch, precision; other runtime",
        ),
        (
            ("intel-max-1550", "torch", "fp16", 6),
            ("xe-hpc", "intel"),
            "amd-mi300x torch-fp16-b8",
            "no record on xe-hpc; none of intel; same precision, runtime; other batch",
        ),
        (
            ("nvidia-h200", "torch", "bf16", 1),
            ("sm_90", "nvidia"),
            "nvidia-h200 torch-fp16-b1",
            "the same architecture sm_90; same batch, runtime; other precision",
        ),
    ],
)
def test_the_closest_record_is_chosen_and_explained(
    key: tuple[str, str, str, int], device: tuple[str, str], found: str, why: str
) -> None:
    """Architecture, then vendor, then any; batch, precision and runtime alike if possible."""
    target, runtime, precision, batch = key
    wanted = Key(model="minilm", target=target, runtime=runtime, precision=precision, batch=batch)
    answer = closest(shelf(), wanted, *device)
    assert answer is not None
    record, reason = answer
    assert f"{record.key.target} {record.key.row}" == found
    assert reason == why


def test_another_model_is_never_close() -> None:
    """Nor is the record itself."""
    key = replace(a_record().key, model="bert")
    assert closest(shelf(), key, "sm_90", "nvidia") is None
    assert closest({a_record().key: a_record()}, a_record().key, "x86_64", "cpu") is None


RACER = """
import sys
from dataclasses import replace
from pathlib import Path
from pytest_portability.records import read, write

path, start = Path(sys.argv[1]), int(sys.argv[2])
(record,) = list(read(path).values())[:1]
for batch in range(start, start + 8):
    key = replace(record.key, batch=batch)
    write(path, {key: replace(record, key=key)})
"""


def test_two_processes_that_update_at_once_lose_no_row(tmp_path: Path) -> None:
    """Each reads the file, adds its row and replaces the file: one at a time.

    Also where each has a directory of its own for temporary files, as jobs of a CI often do.
    """
    path = put(tmp_path / "baselines", a_record(batch=1))
    racers = []
    for start in (100, 200):
        own = tmp_path / str(start)
        own.mkdir()
        command = [sys.executable, "-c", RACER, str(path), str(start)]
        racers.append(subprocess.Popen(command, env={**os.environ, "TMPDIR": str(own)}))
    assert [racer.wait(60) for racer in racers] == [0, 0]
    assert len(read(path)) == 17
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert not any(p for start in ("100", "200") for p in (tmp_path / start).iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a directory")
def test_a_record_that_another_process_never_lets_go_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_S", 0.1)
    path = put(tmp_path, a_record())
    before = path.read_bytes()
    with files.locked(path), pytest.raises(RecordError) as error:
        write(path, {a_record().key: a_record(throughput=1.0)})
    assert str(error.value) == (f"{path}: another process has been writing it for 0.1 s; try again")
    assert path.read_bytes() == before


def test_where_a_directory_cannot_be_locked_a_temporary_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS."""
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def refuse(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with files.locked(tmp_path / "m" / "t.toml"):
        assert list(tmp_path.glob("pytest-portability-*.lock"))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = put(tmp_path, a_record())
    before = path.read_bytes()
    wrong = replace(a_record(), commit=5)  # type: ignore[arg-type] # on purpose
    with pytest.raises(RecordError, match="must be a string, found 5"):
        write(path, {wrong.key: wrong})
    assert path.read_bytes() == before


def test_a_pipe_in_place_of_a_record_does_not_hang(tmp_path: Path) -> None:
    path = path_of(tmp_path, "m", "t")
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="is not a file"):
        read(path)
