import json
import tracemalloc
from math import prod

import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.checkpoints import tensor_file
from trainmaster.checkpoint.tensor_file import (
    DATA_ALIGNMENT,
    DTYPE_BYTES,
    HeaderError,
    TensorSpan,
    decode_header,
    encode_header,
    header_length,
)

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=20), st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), SHAPES)
)


def spans_of(data: bytes) -> dict[str, TensorSpan]:
    return decode_header(data[: header_length(data[:8], len(data))], len(data))


@given(tensors=TENSORS)
def test_what_was_encoded_is_decoded(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    tensors.pop("__metadata__", None)
    header, spans = encode_header([(k, d, s) for k, (d, s) in tensors.items()], {"format": "pt"})
    size = len(header) + sum(prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in tensors.values())
    assert header_length(header[:8], size) == len(header)
    assert len(header) % DATA_ALIGNMENT == 0
    assert decode_header(header, size) == spans
    assert {key: (span.dtype, span.shape) for key, span in spans.items()} == tensors
    assert all(span.start % DTYPE_BYTES[span.dtype] == 0 for span in spans.values())


def test_the_safetensors_library_reads_our_files() -> None:
    data = tensor_file(
        {"b": ("U8", (3,), b"abc"), "a": ("F32", (2, 1), bytes(8)), "empty": ("I64", (0, 2), b"")}
    )
    arrays = safetensors.numpy.load(data)
    assert {name: array.shape for name, array in arrays.items()} == {
        "a": (2, 1),
        "b": (3,),
        "empty": (0, 2),
    }
    assert arrays["b"].tobytes() == b"abc"


def test_we_read_the_files_of_the_safetensors_library() -> None:
    source = safetensors.numpy.load(tensor_file({"x": ("F64", (2, 2), bytes(range(32)))}))
    data = safetensors.numpy.save({"x": source["x"]}, metadata={"who": "them"})
    span = spans_of(data)["x"]
    assert data[span.start : span.end] == bytes(range(32))


def hostile(document: object, *, data: bytes = b"") -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(*offsets: object, shape: object = (4,), dtype: object = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little"),
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        (99_999_999).to_bytes(8, "little") + b"{}",
        hostile(b"not json"),
        hostile(b"\xff\xff"),
        hostile(b"[" * 50_000),
        hostile([1, 2]),
        hostile({"a": 1}),
        hostile({"a": {"dtype": "U8", "shape": [4]}}),
        hostile({"a": {**entry(0, 4), "extra": 1}}, data=b"1234"),
        hostile({"a": entry(0, 4), "b": entry(2, 6)}, data=b"123456"),
        hostile({"a": entry(0, 4), "b": entry(0, 4)}, data=b"1234"),
        hostile({"a": entry(0, 4), "b": entry(5, 9)}, data=b"123456789"),
        hostile({"a": entry(1, 5)}, data=b"12345"),
        hostile({"a": entry(0, 4)}, data=b"12345"),
        hostile({"a": entry(0, 4)}, data=b"123"),
        hostile({"a": entry(4, 0)}, data=b"1234"),
        hostile({"a": entry(0, 2**62, shape=(2**62,))}),
        hostile({"a": entry(0, 4, shape=(2**32, 2**32))}, data=b"1234"),
        hostile({"a": entry(0, 4, shape=(-2, -2))}, data=b"1234"),
        hostile({"a": entry(0, 4, shape=(4.0,))}, data=b"1234"),
        hostile({"a": entry(0, 4, shape=(True, 4))}, data=b"1234"),
        hostile({"a": entry(0, 4, shape=[1] * 100_000 + [4])}, data=b"1234"),
        hostile({"a": entry(0, 4, dtype="U7")}, data=b"1234"),
        hostile({"a": entry(0, 4, dtype=["U8"])}, data=b"1234"),
        hostile(b'{"a":1,"a":2}'),
    ],
)
def test_a_hostile_header_is_refused_without_allocating_on_its_word(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HeaderError):
            spans_of(data)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_are_a_tensor_file(data: bytes) -> None:
    try:
        spans = spans_of(data)
    except HeaderError:
        return
    assert all(span.end <= len(data) for span in spans.values())
