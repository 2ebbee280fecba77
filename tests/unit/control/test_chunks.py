"""Rows of what a sync carries: every bit that means something, and each bad entry by its path."""

from __future__ import annotations

import json
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from control.db.samples import chunks
from trainmaster.errors import SpecError
from trainmaster.facts import Moment, PackedColumns, Step
from trainmaster.spool import MISSING

numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.none())
any_bits = st.integers(0, 2**64 - 1).map(lambda bits: struct.pack("<Q", bits))


def packed(steps: list[int], at: list[float], **values: bytes) -> PackedColumns:
    return PackedColumns(
        steps=np.array(steps, dtype="<i8").tobytes(),
        at=np.array(at, dtype="<f8").tobytes(),
        values=values,
    )


@given(st.lists(numbers, max_size=40))
def test_lists_and_the_packed_form_become_the_same_rows(values: list[float | None]) -> None:
    steps = list(range(3, 3 + len(values)))
    at = [float(step) for step in steps]
    # A measured NaN is the plain one: its bits may be those of the mark, which mean something else.
    plain = [math.nan if each is not None and math.isnan(each) else each for each in values]
    raw = np.array([MISSING if each is None else each for each in plain], dtype="<f8").tobytes()
    one = chunks.rows_of(steps, at, {"loss": values})
    other = chunks.rows_of_packed(packed(steps, at, loss=raw))
    assert one.steps.tolist() == other.steps.tolist() == steps
    assert one.at.tolist() == other.at.tolist() == at
    assert one.values["loss"].tobytes() == other.values["loss"].tobytes()
    assert chunks.missing(one.values["loss"]).tolist() == [each is None for each in values]


@given(st.lists(any_bits, max_size=40))
def test_packed_values_keep_their_bits_but_for_measured_nans(words: list[bytes]) -> None:
    steps = list(range(1, 1 + len(words)))
    found = chunks.rows_of_packed(packed(steps, [0.0] * len(words), loss=b"".join(words)))
    for word, value in zip(words, found.values["loss"], strict=True):
        [told] = struct.unpack("<d", word)
        plain = math.isnan(told) and word != struct.pack("<d", MISSING)
        assert value.tobytes() == (struct.pack("<d", math.nan) if plain else word)


@given(
    st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, 2**53, 2**53 + 1]),
    st.floats()
    | st.sampled_from([0.0, -0.0, -1e-300, 253370764800.0, np.nextafter(253370764800.0, 0)]),
)
def test_the_packed_form_takes_the_steps_and_instants_that_lists_take(step: int, at: float) -> None:
    paths = []
    for path, kind, value in (("packed.steps[1]", Step, step), ("packed.at[1]", Moment, at)):
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError:
            paths.append(path)
    told = packed([1, step], [0.0, at])
    if not paths:
        assert len(chunks.rows_of_packed(told).steps) == 2
        return
    with pytest.raises(SpecError) as refused:
        chunks.rows_of_packed(told)
    assert [problem.path for problem in refused.value.problems] == paths


def test_a_packed_form_with_many_bad_entries_names_the_first_and_their_number() -> None:
    with pytest.raises(SpecError, match=r"packed.steps\[3\]: must be .* not 0, and 1 more are not"):
        chunks.rows_of_packed(packed([1, 2, 3, 0, -7], [0.0] * 5))


OF_THE_RELEASE_BEFORE = bytes.fromhex(
    "350000005b5b2273746570222c35312c315d2c5b226174222c35352c315d2c5b226c6f7373222c32392c315d2c5b22"
    "6c72222c31392c315d5d785e2dc537128020000030eec482205890ff3fd5c164c9147ed1b317afde9cbc3bbbf87075"
    "f3e9cbb71f77bf1efe003de000fb785e2dc9311180401004b095c6031210b4d2ce065e286098542992647bae7b7db0"
    "1c667996c3ec9ee530876739cce959ceef0bb2223cf1785e636000811ff68c10ba1e4cc1e90f503e4303549ceeea00"
    "90a91855785e4b340a35d05a696c9f38486900ddd22f45"
)


def test_a_chunk_of_the_release_before_is_read_and_new_ones_have_its_form() -> None:
    made = chunks.rows_of(
        list(range(3, 23)),
        [1.7e9 + step for step in range(20)],
        {"loss": [1.5, None, math.nan, math.inf, -0.0] * 4, "lr": [3e-4] * 20},
    )
    for stored in (OF_THE_RELEASE_BEFORE, chunks.encode(made)):
        found = chunks.decode(stored, ["loss", "lr"])
        assert found.steps.tolist() == made.steps.tolist()
        assert found.at.tolist() == made.at.tolist()
        for name, column in made.values.items():
            assert found.values[name].tobytes() == column.tobytes()
        # As that release reads it: length of the index, index, columns.
        [length] = struct.unpack_from("<I", stored)
        columns, offset = {}, 4 + length
        for name, size, is_packed in json.loads(stored[4:offset]):
            part = stored[offset : offset + size]
            columns[name] = zlib.decompress(part) if is_packed else part
            offset += size
        assert list(columns) == ["step", "at", "loss", "lr"]
        assert columns["step"] == made.steps.tobytes()
        assert columns["loss"] == made.values["loss"].tobytes()


different = st.dictionaries(st.sampled_from(["loss", "lr", "a"]), st.just([0.5, None]))


@given(st.lists(st.tuples(st.integers(1, 9), different), min_size=1, max_size=6))
def test_chunks_read_together_are_as_if_joined_one_by_one(told: list) -> None:
    parts = [
        chunks.rows_of([first, first + 1], [0.0, float(position)], values)
        for position, (first, values) in enumerate(told)
    ]
    found = chunks.decode_all([chunks.encode(part) for part in parts])
    expected = chunks.joined(parts)
    assert found.steps.tolist() == expected.steps.tolist()
    assert found.at.tolist() == expected.at.tolist()
    assert {name: column.tobytes() for name, column in found.values.items()} == {
        name: column.tobytes() for name, column in expected.values.items()
    }
