import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster import spool
from trainmaster.errors import IntegrityError

HEADER = spool.Header("ralpha/1/0", ("loss", "grad_norm"))
floats = st.floats(allow_nan=True, allow_infinity=True)
frame = st.one_of(
    st.tuples(st.integers(1, 2**53), st.floats(0, 4e9), floats, floats),
    st.text(max_size=20),
)


def written(frames) -> tuple[bytes, list[int]]:
    layout = HEADER.row_struct()
    data, ends = spool.encode_header(HEADER), []
    ends.append(len(data))
    for each in frames:
        if isinstance(each, str):
            data += spool.encode_event(spool.json.dumps({"kind": each}).encode())
        else:
            data += spool.encode_row(layout, each[0], each[1], each[2:])
        ends.append(len(data))
    return data, ends


@given(st.lists(frame, max_size=10), st.data())
def test_a_spool_cut_anywhere_yields_a_prefix_and_the_rest_follows_from_its_cursor(frames, draw):
    data, ends = written(frames)
    cut = draw.draw(st.integers(0, len(data)))
    head = spool.decode(data[:cut], offset=0, header=None)
    assert head.end_offset == max((end for end in ends if end <= cut), default=0)
    tail = spool.decode(data[head.end_offset :], offset=head.end_offset, header=head.header)
    assert tail.end_offset == len(data)
    assert len(head.rows) + len(tail.rows) == sum(not isinstance(each, str) for each in frames)
    events = [each["kind"] for each in (*head.events, *tail.events)]
    assert events == [each for each in frames if isinstance(each, str)]


def test_not_measured_is_told_from_a_measured_nan():
    data = spool.encode_header(HEADER) + spool.encode_row(
        HEADER.row_struct(), 7, 1.5, (math.nan, spool.MISSING)
    )
    [(step, at, values)] = spool.decode(data, offset=0, header=None).rows
    assert (step, at) == (7, 1.5)
    assert math.isnan(values[0])
    assert not spool.is_missing(values[0])
    assert spool.is_missing(values[1])


def test_a_flipped_bit_in_a_whole_frame_is_named_with_its_offset():
    data, ends = written([(1, 0.0, 1.0, 2.0), (2, 0.0, 1.0, 2.0)])
    damaged = bytearray(data)
    damaged[ends[1] + 12] ^= 1
    with pytest.raises(IntegrityError, match=f"offset {ends[1]} is damaged"):
        spool.decode(bytes(damaged), offset=0, header=None)


def test_a_length_that_no_frame_can_have_is_damage_and_not_an_endless_wait():
    data = spool.encode_header(HEADER) + b"\xff\xff\xff\xff" + b"\0" * 9
    with pytest.raises(IntegrityError, match="damaged"):
        spool.decode(data, offset=0, header=None)
