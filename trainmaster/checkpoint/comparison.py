"""How far the weights of two checkpoints lie apart: tensor by tensor, and layer by layer. No torch.

Pure but for what the two `Weights` read; every byte is verified on its way.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from trainmaster.checkpoint.weights import Head, Weights

MAX_TENSORS: Final = 1000
"""That a comparison tells one by one: a node's answer travels as one message."""
MAX_NAMES: Final = 100
"""Of tensors without a counterpart."""
_PIECE: Final = 1 << 20
_GREATEST: Final = sys.float_info.max
_LAYER: Final = re.compile(r"layers\.(\d{1,9})\.")

_PLAIN: Final = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
    "C64": "<f4",  # real and imaginary parts: their squares add up to the same
}


class Distance(BaseModel):
    """Euclidean norms over some numbers of the first checkpoint and the same of the second.

    Where one of the two is NaN or infinite, both are left out of norms and differences, so that
    these are always finite.

    Attributes:
        not_finite, other_not_finite: how many numbers of either are NaN or infinite.
        difference_norm: of the second less the first.
        relative_difference: `difference_norm` of `norm`; None where something came of nothing.
        largest_difference: of a single number.
        changed: how many numbers are not the same; NaN is the same as NaN.
    """

    model_config = ConfigDict(frozen=True)

    elements: int
    changed: int
    not_finite: int
    other_not_finite: int
    norm: float
    other_norm: float
    difference_norm: float
    relative_difference: float | None
    largest_difference: float


class TensorDistance(Distance):
    """That of one tensor."""

    name: str
    layer: int | None
    shape: tuple[int, ...]


class LayerDistance(Distance):
    """That of all tensors of a layer; `layer` None for those that belong to none."""

    layer: int | None
    tensors: int


class Unlike(BaseModel):
    """A tensor that has another shape in the other checkpoint; complex numbers count as two."""

    model_config = ConfigDict(frozen=True)

    name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]


class Comparison(BaseModel):
    """Two checkpoints beside each other.

    Attributes:
        whole: over all tensors that both hold in the same shape.
        layers: by number, those that belong to none last.
        tensors: those that differ most, in relation to what they were, and before them those with
            numbers that are not finite; by layer and name.
        tensors_left_out: how many there are besides.
        only_here, only_there: names without a counterpart, `MAX_NAMES` at most of each.
        unlike: tensors whose shapes differ, `MAX_NAMES` at most.
        without_counterpart: how many tensors these three are, counted whole.
    """

    model_config = ConfigDict(frozen=True)

    whole: Distance
    layers: list[LayerDistance]
    tensors: list[TensorDistance]
    tensors_left_out: int
    only_here: list[str]
    only_there: list[str]
    unlike: list[Unlike]
    without_counterpart: int


def compare(first: Weights, second: Weights, *, most_tensors: int = MAX_TENSORS) -> Comparison:
    """Compare the weights of two checkpoints.

    Args:
        most_tensors: told one by one.

    Raises:
        IntegrityError: bytes are not what a manifest says; names file, block, expected, seen.
        UnavailableError: they cannot be read now.

    Cost: reads all weights of both; holds one tensor of each, and some MiB.
    """
    both = {
        name: (_shape(head), _shape(second.heads[name]))
        for name, head in first.heads.items()
        if name in second.heads
    }
    alike = [name for name, (shape, other) in both.items() if shape == other]
    unlike = [
        Unlike(name=name, shape=shape, other_shape=other)
        for name, (shape, other) in both.items()
        if shape != other
    ]
    only_here = [name for name in first.heads if name not in second.heads]
    only_there = [name for name in second.heads if name not in first.heads]
    sums = {name: _sums(first, second, name) for name in alike}
    of_layers: dict[int | None, list[_Sums]] = {}
    for name in alike:
        of_layers.setdefault(layer_of(name), []).append(sums[name])
    tensors = [
        TensorDistance(name=name, layer=layer_of(name), shape=both[name][0], **sums[name].told())
        for name in alike
    ]
    told = sorted(tensors, key=_size, reverse=True)[:most_tensors]
    return Comparison(
        whole=Distance(**_together(sums.values()).told()),
        layers=[
            LayerDistance(layer=layer, tensors=len(of), **_together(of).told())
            for layer, of in sorted(of_layers.items(), key=lambda each: _last_if_none(each[0]))
        ],
        tensors=sorted(told, key=lambda each: (_last_if_none(each.layer), each.name)),
        tensors_left_out=len(tensors) - len(told),
        only_here=only_here[:MAX_NAMES],
        only_there=only_there[:MAX_NAMES],
        unlike=unlike[:MAX_NAMES],
        without_counterpart=len(unlike) + len(only_here) + len(only_there),
    )


def layer_of(name: str) -> int | None:
    """Return the layer that a parameter's name says it belongs to."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def _shape(head: Head) -> tuple[int, ...]:
    dtype, shape = head
    return (*shape, 2) if dtype == "C64" else shape


class _Sums:
    """What a `Distance` is made of: counts and norms that may be put together."""

    def __init__(self) -> None:
        self.elements = 0
        self.changed = 0
        self.not_finite = 0
        self.other_not_finite = 0
        self.norm = 0.0
        self.other_norm = 0.0
        self.difference_norm = 0.0
        self.largest = 0.0

    def add(self, other: _Sums) -> None:
        """Add what another has summed."""
        self.elements += other.elements
        self.changed += other.changed
        self.not_finite += other.not_finite
        self.other_not_finite += other.other_not_finite
        self.norm = math.hypot(self.norm, other.norm)
        self.other_norm = math.hypot(self.other_norm, other.other_norm)
        self.difference_norm = math.hypot(self.difference_norm, other.difference_norm)
        self.largest = max(self.largest, other.largest)

    def see(self, here: NDArray[np.float64], there: NDArray[np.float64]) -> None:
        """Add some numbers of the one and the same of the other."""
        self.elements += here.size
        finite, other_finite = np.isfinite(here), np.isfinite(there)
        both = finite & other_finite
        if not both.all():
            self.not_finite += int(np.count_nonzero(~finite))
            self.other_not_finite += int(np.count_nonzero(~other_finite))
            sick, other_sick = here[~both], there[~both]
            same = (sick == other_sick) | (np.isnan(sick) & np.isnan(other_sick))
            self.changed += int(np.count_nonzero(~same))
            here, there = here[both], there[both]
        with np.errstate(over="ignore"):
            difference = there - here
        largest, difference_norm = _norms(difference)
        self.changed += int(np.count_nonzero(difference))
        self.norm = math.hypot(self.norm, _norms(here)[1])
        self.other_norm = math.hypot(self.other_norm, _norms(there)[1])
        self.difference_norm = math.hypot(self.difference_norm, difference_norm)
        self.largest = max(self.largest, largest)

    def told(self) -> dict[str, float | int | None]:
        """Return it as the fields of a `Distance`."""
        return {
            "elements": self.elements,
            "changed": self.changed,
            "not_finite": self.not_finite,
            "other_not_finite": self.other_not_finite,
            "norm": min(self.norm, _GREATEST),
            "other_norm": min(self.other_norm, _GREATEST),
            "difference_norm": min(self.difference_norm, _GREATEST),
            "relative_difference": _relative(self.difference_norm, self.norm),
            "largest_difference": min(self.largest, _GREATEST),
        }


def _norms(numbers: NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest magnitude, and the Euclidean norm, also where squares would overflow or
    vanish.
    """
    largest = float(np.abs(numbers).max(initial=0.0))
    if largest == 0.0 or largest == math.inf:
        return largest, largest
    if 1e-140 < largest < 1e140:
        return largest, math.sqrt(float(numbers @ numbers))
    scaled = numbers / largest
    return largest, largest * math.sqrt(float(scaled @ scaled))


def _relative(difference: float, norm: float) -> float | None:
    if difference == 0.0:
        return 0.0
    return min(difference / norm, _GREATEST) if norm else None


def _together(several: Iterable[_Sums]) -> _Sums:
    total = _Sums()
    for each in several:
        total.add(each)
    return total


def _size(distance: TensorDistance) -> tuple[bool, float]:
    relative = distance.relative_difference
    sick = distance.not_finite + distance.other_not_finite > 0
    return sick, math.inf if relative is None else relative


def _last_if_none(layer: int | None) -> float:
    return math.inf if layer is None else layer


def _sums(first: Weights, second: Weights, name: str) -> _Sums:
    found = _Sums()
    here, there = first.bytes_of(name), second.bytes_of(name)
    dtype, other_dtype = first.heads[name][0], second.heads[name][0]
    for one, other in zip(_numbers(here, dtype), _numbers(there, other_dtype), strict=True):
        found.see(one, other)
    return found


def _numbers(data: bytearray, dtype: str) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers of a tensor, some at a time."""
    raw = np.frombuffer(data, dtype=_PLAIN.get(dtype, "u1" if dtype.startswith("F8") else "<u2"))
    for start in range(0, len(raw), _PIECE):
        yield _decoded(raw[start : start + _PIECE], dtype)


def _decoded(raw: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    """Return the numbers that `raw` stands for; numpy knows not all dtypes by itself."""
    if dtype in _PLAIN:
        return raw.astype(np.float64)
    if dtype == "BF16":  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "F8_E5M2":  # the upper half of a float16
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    assert dtype == "F8_E4M3", f"{dtype} is in no checkpoint"
    return _E4M3[raw.astype(np.intp)]


def _e4m3(code: int) -> float:
    """Return the number of an 8-bit code: 4 bits of exponent, 3 of mantissa, no infinity."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 0xF, code & 0x7
    if (exponent, mantissa) == (0xF, 0x7):
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, -9)
    return sign * math.ldexp(8 + mantissa, exponent - 10)


_E4M3: Final = np.array([_e4m3(code) for code in range(256)])
