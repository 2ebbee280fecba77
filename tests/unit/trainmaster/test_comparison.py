"""Two checkpoints beside each other: norms and distances, by tensor and by layer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.fakes.checkpoints import Files, readers, seal_over, shard, tensor_file
from trainmaster.checkpoint.comparison import Comparison, compare
from trainmaster.checkpoint.manifest import MANIFEST_NAME, encode
from trainmaster.checkpoint.weights import Source, Weights
from trainmaster.errors import IntegrityError

FILE = "rank-00000.safetensors"
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def f32(*values: float) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", (len(values),), np.array(values, dtype="<f4").tobytes()


def files_of(tensors: Tensors) -> Files:
    stored = {f"model/{name}": tensor for name, tensor in tensors.items()}
    files = {FILE: tensor_file(stored), "state.json": b'{"step": 20}'}
    entries = {
        name: [shard(FILE, name, list(shape)).model_copy(update={"dtype": dtype})]
        for name, (dtype, shape, _) in stored.items()
    }
    return {**files, MANIFEST_NAME: encode(seal_over(files, entries))}


def weights(files: Files) -> Weights:
    found = readers(files)
    return Weights(Source(found["read"], found["size"], "g1-step20"))  # type: ignore[arg-type]


def compared(first: Tensors, second: Tensors) -> Comparison:
    return compare(weights(files_of(first)), weights(files_of(second)))


def test_norms_and_distances_of_tensors_layers_and_the_whole() -> None:
    first = {
        "layers.0.w": f32(3, 4),
        "layers.0.b": f32(0, 0),
        "layers.10.w": f32(1, 1),
        "layers.2.w": f32(2),
        "head": f32(5),
    }
    second = {**first, "layers.0.w": f32(3, 1), "layers.0.b": f32(0, 4), "head": f32(5)}
    told = compared(first, second)
    assert [each.layer for each in told.layers] == [0, 2, 10, None]
    zero = told.layers[0]
    assert (zero.tensors, zero.elements, zero.changed) == (2, 4, 2)
    assert (zero.norm, zero.difference_norm, zero.largest_difference) == (5, 5, 4)
    assert zero.relative_difference == 1
    assert all(each.difference_norm == 0 for each in told.layers[1:])
    assert [each.name for each in told.tensors] == [
        "layers.0.b", "layers.0.w", "layers.2.w", "layers.10.w", "head",
    ]  # fmt: skip
    born, moved = told.tensors[:2]
    assert born.relative_difference is None, "something came of nothing"
    assert (moved.norm, moved.other_norm) == pytest.approx((5, 10**0.5))
    assert moved.relative_difference == pytest.approx(3 / 5)
    assert told.whole.norm == pytest.approx((25 + 4 + 2 + 25) ** 0.5)
    assert (told.whole.difference_norm, told.whole.changed) == (5, 2)


def test_what_has_no_counterpart_is_named_and_the_rest_is_compared() -> None:
    told = compared(
        {"layers.0.w": f32(1), "layers.1.w": f32(1, 2), "old": f32(1)},
        {"layers.0.w": f32(2), "layers.1.w": f32(1), "new": f32(1)},
    )
    assert (told.only_here, told.only_there, told.without_counterpart) == (["old"], ["new"], 3)
    [unlike] = told.unlike
    assert (unlike.name, unlike.shape, unlike.other_shape) == ("layers.1.w", (2,), (1,))
    assert [each.name for each in told.tensors] == ["layers.0.w"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BF16", torch.bfloat16),
        ("F16", torch.float16),
        ("F64", torch.float64),
        ("F8_E4M3", torch.float8_e4m3fn),
        ("F8_E5M2", torch.float8_e5m2),
        ("I32", torch.int32),
        ("C64", torch.complex64),
    ],
)
def test_every_dtype_is_read_as_torch_reads_it(name: str, dtype: torch.dtype) -> None:
    drawn = torch.randn(999, generator=torch.Generator().manual_seed(3)) * 40
    made = drawn.to(torch.complex64) * (1 + 2j) if dtype.is_complex else drawn.to(dtype)
    if dtype.itemsize == 1:  # each number that there is
        every = torch.arange(256, dtype=torch.uint8).view(dtype)
        made = every[every.float().isfinite()]
    tensor = (name, tuple(made.shape), made.view(torch.uint8).numpy().tobytes())
    told = compared({"w": tensor}, {"w": tensor})
    wide = made.to(torch.complex128 if dtype.is_complex else torch.float64)
    assert told.whole.norm == pytest.approx(float(wide.abs().square().sum().sqrt()), rel=1e-12)
    assert told.whole.changed == 0


def test_dtypes_may_differ_and_tensors_may_be_long_or_empty() -> None:
    many = np.arange(1_100_003, dtype="<f4")
    told = compared(
        {"w": ("F32", many.shape, many.tobytes()), "none": ("F32", (0,), b"")},
        {"w": ("F64", many.shape, (many.astype("<f8") + 1).tobytes()), "none": ("F32", (0,), b"")},
    )
    assert told.whole.elements == told.whole.changed == len(many)
    assert told.whole.difference_norm == pytest.approx(len(many) ** 0.5)


def test_what_is_not_finite_is_counted_and_every_norm_stays_finite() -> None:
    nan, inf = float("nan"), float("inf")
    huge = np.array([1e300, -1e-170, 1.7e308])
    sick = ("F64", huge.shape, huge.tobytes())
    other = ("F64", huge.shape, (-huge).tobytes())
    told = compared(
        {"layers.0.w": f32(1, nan, inf, 3), "layers.1.w": f32(3, 4), "huge": sick},
        {"layers.0.w": f32(2, nan, inf, -inf), "layers.1.w": f32(nan, 4), "huge": other},
    )
    first, second, rest = told.layers
    assert (first.not_finite, first.other_not_finite, first.changed) == (2, 3, 2)
    assert (first.norm, first.other_norm, first.largest_difference) == (1, 2, 1)
    assert (second.not_finite, second.other_not_finite, second.norm) == (0, 1, 4)
    assert (rest.changed, rest.norm, rest.not_finite) == (3, pytest.approx(1.7e308), 0)
    json.dumps(told.model_dump(), allow_nan=False)


def test_norms_are_right_where_squares_would_vanish() -> None:
    tiny = np.array([3e-200, 4e-200])
    told = compared(
        {"w": ("F64", (2,), tiny.tobytes())}, {"w": ("F64", (2,), (2 * tiny).tobytes())}
    )
    assert (told.whole.norm, told.whole.relative_difference) == pytest.approx((5e-200, 1))


def test_tensors_with_numbers_that_are_not_finite_are_told_before_all_others() -> None:
    first = weights(files_of({"a": f32(1), "b": f32(0), "c": f32(1, 2)}))
    second = weights(files_of({"a": f32(9), "b": f32(9), "c": f32(1, float("nan"))}))
    assert [each.name for each in compare(first, second, most_tensors=1).tensors] == ["c"]


def test_a_complex_number_counts_as_two_and_is_not_compared_with_one() -> None:
    told = compared({"w": f32(1, 2)}, {"w": ("C64", (2,), bytes(16))})
    [unlike] = told.unlike
    assert (unlike.shape, unlike.other_shape) == ((2,), (2, 2))


def test_of_very_many_tensors_those_that_differ_most_are_told() -> None:
    first = weights(files_of({f"layers.{n}.w": f32(1) for n in range(5)}))
    second = weights(files_of({f"layers.{n}.w": f32(1 + n % 3) for n in range(5)}))
    told = compare(first, second, most_tensors=2)
    assert [each.name for each in told.tensors] == ["layers.1.w", "layers.2.w"]
    assert (told.tensors_left_out, len(told.layers)) == (3, 5)


def test_a_damaged_byte_is_told_instead() -> None:
    files = files_of({"layers.0.w": f32(1, 2, 3)})
    damaged = {**files, FILE: files[FILE][:-1] + b"?"}
    with pytest.raises(IntegrityError, match=r"rank-00000.safetensors: block 0: expected sha256"):
        compare(weights(files), weights(damaged))
