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


def test_columns_hold_the_bits_of_the_rows():
    layout = HEADER.row_struct()
    rows = [(1, 1.5, math.nan, spool.MISSING), (2**53, 2.5, -math.inf, -0.0)]
    data = spool.encode_header(HEADER) + b"".join(
        spool.encode_row(layout, step, at, values) for step, at, *values in rows
    )
    frames = spool.decode(data, offset=0, header=None)
    steps, at, loss, norm = frames.columns()
    assert spool.numbers("q", steps) == (1, 2**53)
    assert spool.numbers("d", at) == (1.5, 2.5)
    assert spool.missing_in(loss) == [False, False]
    assert spool.missing_in(norm) == [True, False]
    assert norm.endswith(b"\0\0\0\x80"), "minus zero keeps its sign"
    assert (frames.num_rows, frames.last_step) == (2, 2**53)
    assert spool.last_measured(loss) == -math.inf
    assert spool.last_measured(spool.MISSING_BYTES) is None


def test_what_stands_before_damage_is_told_apart_from_the_damage():
    data, ends = written([(1, 0.0, 1.0, 2.0), "told", (2, 0.0, 1.0, 2.0)])
    damaged = data[: ends[2] + 12] + b"\xff" + data[ends[2] + 13 :]
    frames, damage = spool.decode_before_damage(damaged, offset=0, header=None)
    assert (frames.num_rows, len(frames.events), frames.end_offset) == (1, 1, ends[2])
    assert damage is not None


def test_a_row_of_another_length_than_its_header_says_is_damage():
    other = spool.Header(HEADER.stream, ("loss",))
    data = spool.encode_header(HEADER) + spool.encode_row(other.row_struct(), 1, 0.0, (1.0,))
    with pytest.raises(IntegrityError, match="is not as its header"):
        spool.decode(data, offset=0, header=None)


def test_a_header_behind_rows_begins_what_is_read_next():
    data, _ = written([(1, 0.0, 1.0, 2.0)])
    other = spool.Header(HEADER.stream, ("loss",))
    later = spool.encode_header(other) + spool.encode_row(other.row_struct(), 2, 0.0, (1.0,))
    first = spool.decode(data + later, offset=0, header=None)
    assert first.end_offset == len(data)
    rest = spool.decode(later, offset=first.end_offset, header=first.header)
    assert (rest.header, rest.rows) == (other, [(2, 0.0, (1.0,))])
