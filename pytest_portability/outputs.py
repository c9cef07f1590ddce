"""Outputs as arrays: how far two sets differ, and the sketches and hashes that records keep."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_portability.models import Array, Arrays, digest

SKETCH_REL = 0.25
"""How far a distance from sketches may be off, either way (measured 0.78–1.21)."""

FILL = 100.0
"""How many times as large as all other elements fill is. Beside fewer, an error of 1 % of the rest
still makes one of 1e-4, which is out of the tolerance of fp32."""

FILL_LEAST = 1e3
"""Magnitude from which a value may be fill: probabilities that are exactly 1 are none."""

FILL_REL = 0.01
"""How far fill may be from its value: bf16 rounds it by 0.4 %."""

BF16_MOST = 3.38953139e38

_LONE = {"output", "output_0"}
_BUCKETS = 64
_CHUNK = 1 << 18  # a multiple of 8, the hashes of one 64-bit word; 2 MiB of float64 stay in cache


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """One output held against its reference of the same shape.

    Attributes:
        error_rel: ‖output − reference‖₂ ÷ ‖reference‖₂ over elements that count in both (no fill,
            finite), in float64; ‖output − reference‖₂ itself where the reference is all zero; for
            an integer, boolean or string output the share (0–1) of elements that differ.
        absolute: whether the reference is all zero, so that ``error_rel`` is not relative.
        elements: number of elements compared.
        differing: elements that differ at all; NaN equals NaN.
        exact: whether the output is integer, boolean or string.
        misplaced: elements that are NaN, infinite or fill in one and not the same in the other.
        nonfinite: NaN, infinite and fill elements of the output.
        nonfinite_reference: those of the reference.
    """

    name: str
    error_rel: float
    elements: int
    differing: int
    absolute: bool = False
    exact: bool = False
    misplaced: int = 0
    nonfinite: int = 0
    nonfinite_reference: int = 0

    def failure(self, tolerance: float, than: str) -> str:
        """What is wrong, as a sentence; empty if the output is within the tolerance."""
        name = repr(self.name)
        if self.misplaced:
            return (
                f"output {name}: {self.nonfinite} of {self.elements} elements are NaN, infinite or "
                f"masked, {self.nonfinite_reference} in {than}; {self.misplaced} are not the same"
            )
        if self.error_rel <= tolerance:
            return ""
        if self.exact:
            return (
                f"output {name}: {self.differing} of {self.elements} elements differ from {than} "
                f"({self.error_rel:.2g} > {tolerance:.2g})"
            )
        size = f"absolute L2 error ({than} is all zero)" if self.absolute else "relative L2 error"
        return f"output {name}: {size} {self.error_rel:.2g} against {than} > {tolerance:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """All outputs held against a reference.

    Attributes:
        problems: names, order, shapes and kinds of dtype that differ, one sentence each.
        outputs: the outputs that could be compared, in the build's order.
    """

    problems: tuple[str, ...]
    outputs: tuple[OutputDifference, ...]

    @property
    def worst_rel(self) -> float:
        """The largest error over the outputs; infinite where one, or none, could be compared."""
        if self.problems:
            return math.inf
        return max((d.error_rel for d in self.outputs), default=math.inf)

    @property
    def identical(self) -> bool:
        """Whether every element is the same, NaN where NaN is."""
        return not self.problems and not any(d.differing for d in self.outputs)

    def failures(
        self, allowed: Callable[[str], float], than: str = "the reference"
    ) -> tuple[str, ...]:
        """One sentence for each way in which the outputs are not the reference's.

        Args:
            allowed: error (fraction, ≥ 0) allowed of the output of a name.
            than: what the outputs were compared with, for the sentences.
        """
        found = (d.failure(allowed(d.name), than) for d in self.outputs)
        return (*self.problems, *(sentence for sentence in found if sentence))


def error_rel(outputs: Arrays, reference: Arrays) -> Differences:
    """Hold outputs against a reference.

    A lone output may be called ``output`` on one side and ``output_0`` on the other: a reference
    given as a list of one does not know whether the module returns a tensor or a tuple of one.

    A reference in float64 for a build in float32 is as it should be: only the kind of dtype
    (floating, integer, boolean, text) has to agree here.

    Args:
        outputs: any shapes and dtypes; only read.
        reference: the same names; only read.
    """
    problems: list[str] = []
    if not outputs and not reference:
        problems.append("there is no output to compare")
    if len(outputs) == len(reference) == 1 and {*outputs, *reference} == _LONE:
        reference = dict(zip(outputs, reference.values(), strict=True))
    if set(outputs) == set(reference) and list(outputs) != list(reference):
        problems.append(f"outputs are in the order {[*outputs]}, the reference's in {[*reference]}")
    problems += [f"output {n!r} of the reference is missing" for n in reference if n not in outputs]
    problems += [f"output {n!r} is not in the reference" for n in outputs if n not in reference]
    found = []
    for name in (n for n in outputs if n in reference):
        here, there = np.asarray(outputs[name]), np.asarray(reference[name])
        if here.shape != there.shape:
            problems.append(f"output {name!r} has shape {here.shape}, the reference {there.shape}")
        elif kind(here) != kind(there):
            problems.append(
                f"output {name!r} is {here.dtype.name}, the reference {there.dtype.name}"
            )
        else:
            compare = _difference if kind(here) == "floating" else _exact_difference
            found.append(compare(name, here, there))
    return Differences(problems=tuple(problems), outputs=tuple(found))


def _difference(name: str, here: Array, there: Array) -> OutputDifference:
    """The relative L2 error in chunks, each scaled so that no square leaves float64."""
    squares = norm = 0.0
    differing = misplaced = nonfinite = nonfinite_reference = 0
    fill = filler(there)
    scale = max((_largest(_without(b, fill)) for b in _chunks(there)), default=0.0) or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for a, b in zip(_chunks(here), _chunks(there), strict=True):
            a, b = _without(a, fill), _without(b, fill)  # noqa: PLW2901 - fresh copies
            lost_a, lost_b = ~np.isfinite(a), ~np.isfinite(b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            both = ~(lost_a | lost_b)
            kept = b[both] / scale
            difference = a[both] / scale - kept
            squares += float(difference @ difference)
            norm += float(kept @ kept)
            differing += int(np.count_nonzero(~same))
            misplaced += int(np.count_nonzero(~same & ~both))
            nonfinite += int(np.count_nonzero(lost_a))
            nonfinite_reference += int(np.count_nonzero(lost_b))
    return OutputDifference(
        name=name,
        error_rel=math.sqrt(squares) / math.sqrt(norm) if norm else math.sqrt(squares) * scale,
        absolute=norm == 0 and squares > 0,
        elements=here.size,
        differing=differing,
        misplaced=misplaced,
        nonfinite=nonfinite,
        nonfinite_reference=nonfinite_reference,
    )


def filler(array: Array) -> float:
    """The value of an output's masked elements, such as −1e9; NaN if none are.

    One value, that of the largest magnitude, in more than one element and ``FILL`` times as large
    as all others: beside it an error of everything else vanishes in a norm.
    """
    largest, value = 0.0, math.nan
    for part in _chunks(array):
        if (most := _largest(part)) > largest:
            largest, value = (
                most,
                float(part[np.argmax(np.where(np.isfinite(part), abs(part), -1))]),
            )
    count, rest = 0, 0.0
    for part in _chunks(array):
        count += int(np.count_nonzero(part == value))
        rest = max(rest, _largest(part[part != value]))
    masks = count > 1 and largest >= FILL_LEAST and 0 < rest * FILL <= largest
    return value if masks else math.nan


def _largest(part: npt.NDArray[np.float64]) -> float:
    """Largest magnitude among finite elements, 0 if there are none."""
    return float(np.max(np.abs(part), initial=0.0, where=np.isfinite(part)))


def _without(part: npt.NDArray[np.float64], fill: float) -> npt.NDArray[np.float64]:
    """The elements, infinite where they are fill."""
    close = np.abs(part - fill) <= FILL_REL * abs(fill)  # of no element where there is no fill
    part[close] = math.copysign(math.inf, fill)
    return part


def _exact_difference(name: str, here: Array, there: Array) -> OutputDifference:
    differing = int(np.count_nonzero(here != there))
    share = differing / here.size if here.size else 0.0
    return OutputDifference(
        name=name, error_rel=share, elements=here.size, differing=differing, exact=True
    )


def kind(array: Array) -> str:
    """Kind of dtype; bfloat16 and float8 of ml_dtypes have NumPy's kind V."""
    if array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float")):
        return "floating"
    return {"b": "boolean", "i": "integer", "u": "integer"}.get(array.dtype.kind, "text")


def _chunks(array: Array) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in C order as float64, at most ``_CHUNK`` at a time, each chunk a fresh copy."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.astype(np.complex128).view(np.float64)
    # What is masked with the largest number of a type is infinite in a wider one.
    most = _most(flat.dtype)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        saturated = np.abs(part) >= most
        part[saturated] = np.copysign(np.inf, part[saturated])
        yield part


def _most(dtype: np.dtype[Any]) -> float:
    """The largest number of a floating type; of float32 that of bfloat16, which comes as such."""
    if dtype.kind != "f":
        return math.inf  # bfloat16 and float8 of ml_dtypes, which NumPy does not know
    return float(np.finfo(dtype).max) if dtype != np.float32 else BF16_MOST


def sketch(array: Array) -> str:
    """The L2 norm and a count sketch of a floating array, as base64 of 65 little-endian float32.

    Each element is hashed with a sign to one of 64 buckets, accumulated in float64; element i of
    the array in C order takes byte i of PCG64's raw stream, which NumPy keeps stable across
    releases and platforms. Sketches are linear, so the norm of the difference of two sketches
    estimates that of the arrays, with a standard deviation of √(2 ÷ 64) in its square.
    Charikar, Chen, Farach-Colton 2002, https://doi.org/10.1007/3-540-45465-9_59.

    NaN, infinite and fill elements count as zero; an empty array gives zeros.

    Args:
        array: floating, any shape; only read.
    """
    stream = np.random.PCG64(0)
    signed, squares, fill = np.zeros(2 * _BUCKETS), 0.0, filler(array)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _chunks(array):
            part = _without(part, fill)  # noqa: PLW2901 - a fresh copy
            part[~np.isfinite(part)] = 0.0
            words = np.asarray(stream.random_raw((part.size + 7) // 8))
            hashes = words.astype("<u8").view(np.uint8)[: part.size] % np.uint8(2 * _BUCKETS)
            signed += np.bincount(hashes, weights=part, minlength=2 * _BUCKETS)
            squares += float(part @ part)
        buckets = signed[:_BUCKETS] - signed[_BUCKETS:]
        line = np.array([math.sqrt(squares), *buckets]).astype("<f4")
    return base64.b64encode(line.tobytes()).decode("ascii")


def sketch_values(text: str) -> npt.NDArray[np.float64]:
    """Norm and buckets, shape (65,).

    Raises:
        ValueError: the text is not a sketch.
    """
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 4 * (_BUCKETS + 1):
        msg = f"a sketch is base64 of {_BUCKETS + 1} float32, this has {len(raw)} bytes"
        raise ValueError(msg)
    return np.frombuffer(raw, "<f4").astype(np.float64)


def sketch_distance(here: str, there: str) -> float:
    """Estimate the relative L2 difference between two arrays from their sketches.

    Measured 0.78–1.21 times the true one from 100 to 10⁶ elements where the difference is spread
    over many elements. In a few it is estimated more coarsely: two equal ones cancel in 1 of 128
    cases. Rounding to float32 gives a floor of about 1e-7. Relative to the norm of ``there``;
    absolute where that is zero; NaN where a norm is beyond float32.

    Raises:
        ValueError: one of them is not a sketch.
    """
    a, b = sketch_values(here), sketch_values(there)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return float(np.linalg.norm(a[1:] - b[1:])) / (float(b[0]) or 1.0)


def norm_change(here: str, there: str) -> float:
    """Relative change of the norm between two sketches: no difference of theirs is smaller.

    Exact to float32. Relative to the norm of ``there``; absolute where that is zero.

    Raises:
        ValueError: one of them is not a sketch.
    """
    a, b = float(sketch_values(here)[0]), float(sketch_values(there)[0])
    return abs(a - b) / (b or 1.0)


def exact_digest(array: Array) -> str:
    """Hash of one array: dtype, shape and values."""
    return digest({"": array})[:16]


def nonfinite(array: Array) -> str:
    """Counts and the hash of the positions of non-finite and fill elements; empty without any.

    The largest numbers of a type, and fill, count as infinite, whatever they are.
    """
    fill = filler(array)
    parts = (_without(part, fill) for part in _chunks(array))
    codes = np.concatenate(
        [np.isnan(p) + 2 * np.isposinf(p) + 3 * np.isneginf(p) for p in parts]
        or [np.zeros(0, np.int64)]
    ).astype(np.uint8)
    if not codes.any():
        return ""
    nan, above, below = (int(np.count_nonzero(codes == code)) for code in (1, 2, 3))
    return f"{nan} NaN, {above} +inf, {below} -inf: {exact_digest(codes)}"
