"""Targets, tolerances by target, batches and session options: a network that knows file types."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import wave
import zipfile

import numpy as np
import pytest
from packaged import file_of

MODEL = file_of("magika", "models/standard_v3_3/model.onnx")
CONFIG = json.loads(file_of("magika", "models/standard_v3_3/config.min.json").read_text())
TEXT = ("It was a bright cold day in April, and the clocks were striking thirteen. " * 60).encode()


def features(data):
    """First and last kilobyte, stripped and padded, as int32 (2048,)."""
    size, pad, block = CONFIG["beg_size"], CONFIG["padding_token"], CONFIG["block_size"]
    begin = list(data[:block].lstrip()[:size])
    end = list(data[-block:].rstrip()[-size:])
    return np.array(begin + [pad] * (size - len(begin)) + [pad] * (size - len(end)) + end, np.int32)


def archives():
    """Files of known types, made by the standard library: (bytes, label) each."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        # With a date of its own, so that the bytes are the same at every time of day.
        archive.writestr(zipfile.ZipInfo("a.txt"), TEXT, compress_type=zipfile.ZIP_DEFLATED)
    yield stream.getvalue(), "zip"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT))
    yield stream.getvalue(), "tar"
    yield gzip.compress(TEXT, mtime=0), "gzip"
    yield bz2.compress(TEXT), "bzip"
    yield lzma.compress(TEXT), "xz"
    yield pickle.dumps({str(i): [i] * 9 for i in range(300)}), "pickle"
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes(np.arange(9000, dtype=np.int16).tobytes())
    yield stream.getvalue(), "wav"


def sources():
    """Texts of known types: (bytes, label) each."""
    rows = range(40)
    yield json.dumps({"users": [{"id": i, "name": f"user {i}"} for i in rows]}, indent=2), "json"
    yield "id,name,price\n" + "".join(f"{i},item {i},{i * 1.5:.2f}\n" for i in rows), "csv"
    yield "".join(f"def f{i}(x):\n    return [y + {i} for y in x]\n\n\n" for i in rows), "python"
    body = "".join(f'  <book id="{i}"><title>Book {i}</title></book>\n' for i in rows)
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<books>\n{body}</books>\n', "xml"
    links = "".join(f'<li><a href="/p/{i}">Item {i}</a></li>\n' for i in rows)
    page = "<!DOCTYPE html>\n<html><head><title>Shop</title></head><body><ul>\n"
    yield f"{page}{links}</ul></body></html>\n", "html"
    yield "".join(f"INSERT INTO t (id, name) VALUES ({i}, 'n{i}');\n" for i in rows), "sql"
    yield (
        "#!/bin/bash\nset -e\n"
        + "".join(f'if [ -f "f{i}" ]; then\n  rm "f{i}"\nfi\n' for i in rows),
        "shell",
    )


SAMPLES = [*archives(), *((text.encode(), label) for text, label in sources())]
KNOWN = np.stack([features(data) for data, _ in SAMPLES])


def types_known(predict):
    """Share of files named rightly, and the mean probability of the right type."""
    labels = [CONFIG["target_labels_space"].index(label) for _, label in SAMPLES]
    scores = predict([KNOWN])["target_label"]
    return {
        "accuracy": float((scores.argmax(axis=1) == labels).mean()),
        "confidence": float(scores[np.arange(len(labels)), labels].mean()),
    }


def inputs(batch, rng):
    """Files in turn."""
    return {"bytes": KNOWN[np.arange(batch) % len(KNOWN)]}


@pytest.fixture
def session_options(request):
    """Options by runtime; ``--optimization-level`` adds one of them for a demonstration."""
    options = {"intra_op_num_threads": 1}  # steadier than two where neighbours take turns
    if level := request.config.getoption("optimization_level"):
        options["graph_optimization_level"] = level
    return {"onnxruntime": options, "openvino": {"INFERENCE_NUM_THREADS": 1}}


@pytest.mark.portability(
    runtimes=["onnxruntime.*", "openvino"],
    precisions=["fp32"],  # OpenVINO's own choice is bf16 where the CPU has it
    batches=[1],
    tolerance={"cpu-*": 0.08, "*": 0.05},
    seconds=1.0,
)
def test_magika(portability, session_options):
    """A CPU may lose 8 %, an accelerator 5 %."""
    portability.check(MODEL, inputs=inputs, metric=types_known, options=session_options)
