"""Reading spools: what ranks wrote, forwarded from whatever cursor the control plane names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainmaster import timeline
from trainmaster.errors import IntegrityError
from trainmaster.facts import Batch, Columns, Event, PackedColumns, PackedTimeline
from trainmaster.spool import (
    MAX_PAYLOAD_BYTES,
    Frames,
    Header,
    decode,
    decode_before_damage,
    missing_in,
    next_whole,
    numbers,
)

STREAM_BYTES = 1 << 20
"""What one stream contributes to one sync, at most about."""
SYNC_BYTES = 4 << 20
"""What all streams together contribute to one sync, at most about."""
COSTLY_SHARE = 4
"""Events, and samples as lists of numbers, take far longer to store than packed samples: of them a
sync carries this part.
"""
_MANY_EVENTS = 500
_PACKED_PROTOCOL = 2
_TIMELINE_PROTOCOL = 3

MAX_REFUSALS = 5
"""After so many refusals in a row nothing waits for a stream any more."""

_WHOLE_FRAME_BYTES = MAX_PAYLOAD_BYTES + 64
_HEADER_BYTES = 64 << 10


class SpoolReader:
    """Reads whole frames of one file from any offset.

    Attributes:
        passed_over: the newest damage behind which reading went on; None where there was none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed_over: str | None = None
        self._header: Header | None = None

    def size(self) -> int:
        """Return the file's size, 0 while there is none."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int, limit: int) -> Frames:
        """Return the whole frames from `offset` on: about `limit` bytes, but at least one.

        Damage is passed over where a whole frame follows within reach.

        Raises:
            IntegrityError: the frame at `offset` is damaged, and none follows. Whole ones before a
                damaged one are returned first.
        """
        if offset >= self.size():
            return Frames(offset, self._header)
        with self.path.open("rb") as file:
            if offset and self._header is None:
                self._header = _first_header(file.read(_HEADER_BYTES))
            try:
                frames = self._whole(file, offset, limit)
            except IntegrityError as damage:
                file.seek(offset)
                frames = self._behind(damage, file.read(_WHOLE_FRAME_BYTES), offset)
        self._header = frames.header
        return frames

    def _whole(self, file: BinaryIO, offset: int, limit: int) -> Frames:
        file.seek(offset)
        frames = self._decode(file.read(limit), offset)
        if frames.end_offset == offset and limit < _WHOLE_FRAME_BYTES:
            file.seek(offset)
            frames = self._decode(file.read(_WHOLE_FRAME_BYTES), offset, max_frames=1)
        return frames

    def _behind(self, damage: IntegrityError, data: bytes, offset: int) -> Frames:
        """Return the first frame that stands whole behind the damage with which `data` begins."""
        position = next_whole(data)
        if position is None:
            raise damage
        self.passed_over = damage.message
        return self._decode(data[position:], offset + position, max_frames=1)

    def _decode(self, data: bytes, offset: int, max_frames: int = 1 << 30) -> Frames:
        frames, damage = decode_before_damage(
            data, offset=offset, header=self._header, max_frames=max_frames
        )
        if damage is not None and frames.end_offset == offset:
            raise damage
        return frames


def _first_header(data: bytes) -> Header | None:
    return decode(data, offset=0, header=None, max_frames=1).header


def to_batch(stream: str, from_offset: int, frames: Frames, *, protocol: int) -> Batch:
    """Return what `frames` say as a message of `protocol`."""
    packs = protocol >= _PACKED_PROTOCOL
    return Batch(
        stream=stream,
        from_offset=from_offset,
        to_offset=frames.end_offset,
        events=[Event.model_validate(event) for event in frames.events],
        samples=None if packs else _listed(frames),
        packed=_packed(frames) if packs else None,
        timelines=_timelines(frames) if protocol >= _TIMELINE_PROTOCOL else [],
    )


def _timelines(frames: Frames) -> list[PackedTimeline]:
    for each in frames.timelines:
        timeline.decode(each)  # as with samples: one that nobody could take is this stream's damage
    return [PackedTimeline(data=each) for each in frames.timelines]


def _packed(frames: Frames) -> PackedColumns | None:
    if not frames.samples:
        return None
    steps, at, *values = frames.columns()
    # What nobody could take is this stream's damage: sent packed, it would have the node refused.
    Columns(steps=list(numbers("q", steps)), at=list(numbers("d", at)), values={})
    return PackedColumns(steps=steps, at=at, values=dict(zip(frames.metrics, values, strict=True)))


def _listed(frames: Frames) -> Columns | None:
    if not frames.samples:
        return None
    steps, at, *values = frames.columns()
    return Columns(
        steps=list(numbers("q", steps)),
        at=list(numbers("d", at)),
        values={
            metric: [
                None if is_missing else value
                for value, is_missing in zip(numbers("d", column), missing_in(column), strict=True)
            ]
            for metric, column in zip(frames.metrics, values, strict=True)
        },
    )


@dataclass(slots=True)
class Stream:
    """One spool on its way to the control plane.

    Attributes:
        cursor: up to where the control plane has stored it, as it last said; None: not yet known.
        ask: the next sync is to ask for the cursor, whether or not there is anything new.
        tail: up to where this process has looked at it for its own purposes.
        deaf: it is not looked at.
        deaf_bytes: it is looked at no further until it is longer than this: the frame at `tail` is
            damaged.
        damage: what is wrong at the cursor; nothing behind it can be read.
        damage_bytes: how long it was then; when it is longer, it is tried again.
        refusals: answers in a row that stored nothing of what was sent, or named no cursor.
    """

    name: str
    reader: SpoolReader
    cursor: int | None = None
    ask: bool = True
    tail: int = 0
    deaf: bool = False
    deaf_bytes: int = 0
    damage: str | None = None
    damage_bytes: int = 0
    refusals: int = 0


def _may_be_read(stream: Stream, size: int) -> bool:
    """Return whether the stream is whole at its cursor as far as is known, or has grown since."""
    return stream.damage is None or size > stream.damage_bytes


class Spools:
    """All spools that a node keeps."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._turn = 0

    def __contains__(self, name: str) -> bool:
        return name in self._streams

    def add(self, name: str, path: Path, *, cursor: int | None, tail: bool) -> None:
        """Forward the spool at `path`, which may not exist yet, as stream `name`.

        Args:
            cursor: what the control plane is taken to have of it; None: ask before sending.
            tail: whether `tail` is to show it.
        """
        stream = Stream(name, SpoolReader(path), cursor, ask=cursor is None, deaf=not tail)
        self._streams.setdefault(name, stream)

    def drop(self, name: str) -> None:
        """Forward it no longer."""
        self._streams.pop(name, None)

    def ask_all(self) -> None:
        """Have the next syncs ask for every cursor: the control plane may have changed its mind."""
        for stream in self._streams.values():
            stream.ask = True

    def tail(self) -> Iterator[tuple[str, Frames]]:
        """Yield the frames that came since the last call, stream by stream."""
        for stream in list(self._streams.values()):
            while not stream.deaf and max(stream.tail, stream.deaf_bytes) < stream.reader.size():
                seen_bytes = stream.reader.size()
                try:
                    frames = stream.reader.read(stream.tail, STREAM_BYTES)
                except IntegrityError:
                    stream.deaf_bytes = seen_bytes
                    break
                if frames.end_offset == stream.tail:
                    break
                stream.tail = frames.end_offset
                yield stream.name, frames

    def batches(self, *, protocol: int, limit: int | None = None) -> list[Batch]:
        """Return what the control plane lacks in the form of `protocol`: at most about `limit`
        bytes of spool.

        Streams whose cursor is unknown are named without content. Who comes first changes from
        call to call, so that one talkative rank cannot silence the others.
        """
        part = 1 if protocol >= _PACKED_PROTOCOL else COSTLY_SHARE
        share = STREAM_BYTES // part
        limit = SYNC_BYTES // part if limit is None else limit
        found: list[Batch] = []
        streams = list(self._streams.values())
        self._turn += 1
        first = self._turn % len(streams) if streams else 0
        for stream in streams[first:] + streams[:first]:
            batch = self._batch(stream, min(limit, share), protocol)
            if batch is not None:
                limit -= batch.to_offset - batch.from_offset
                found.append(batch)
        return found

    def _batch(self, stream: Stream, limit: int, protocol: int) -> Batch | None:
        if stream.cursor is None:
            return Batch(stream=stream.name, from_offset=0, to_offset=0)
        size = stream.reader.size()
        if limit > 0 and stream.cursor < size and _may_be_read(stream, size):
            try:
                frames = stream.reader.read(stream.cursor, limit)
                if len(frames.events) > _MANY_EVENTS:
                    less = min(limit, STREAM_BYTES // COSTLY_SHARE)
                    frames = stream.reader.read(stream.cursor, less)
                stream.damage = None
                if frames.end_offset > stream.cursor:
                    return to_batch(stream.name, stream.cursor, frames, protocol=protocol)
            except (IntegrityError, ValueError) as error:
                stream.damage, stream.damage_bytes = str(error), size
        if stream.ask:
            return Batch(stream=stream.name, from_offset=stream.cursor, to_offset=stream.cursor)
        return None

    def accept(self, sent: Sequence[Batch], cursors: Mapping[str, int]) -> bool:
        """Continue from the cursors that answer `sent`; return whether any moved."""
        moved = False
        for batch in sent:
            stream = self._streams.get(batch.stream)
            if stream is None:
                continue
            cursor = cursors.get(batch.stream, stream.cursor)
            stream.ask = False
            if cursor != stream.cursor:
                moved = True
                stream.cursor, stream.refusals, stream.damage = cursor, 0, None
            elif cursor is None or batch.to_offset > batch.from_offset:
                stream.refusals += 1
        return moved

    def stored(self, name: str) -> bool:
        """Return whether the control plane has all of it: no whole frame lies behind the cursor."""
        stream = self._streams.get(name)
        if stream is None:
            return True
        if stream.cursor is None:
            return False
        size = stream.reader.size()
        if stream.cursor >= size or not _may_be_read(stream, size):
            return True
        try:
            return stream.reader.read(stream.cursor, 1).end_offset == stream.cursor
        except IntegrityError:
            return True

    def settled(self, name: str) -> bool:
        """Return whether nothing more can be stored of it: all is, or the rest is refused."""
        stream = self._streams.get(name)
        return stream is None or stream.refusals >= MAX_REFUSALS or self.stored(name)

    def damaged(self) -> dict[str, str]:
        """Return what is wrong with which stream."""
        found = {
            stream.name: stream.damage or stream.reader.passed_over
            for stream in self._streams.values()
        }
        return {name: damage for name, damage in found.items() if damage is not None}

    def lag(self) -> int:
        """Return about how many bytes the control plane has still to store."""
        return sum(
            max(0, stream.reader.size() - stream.cursor)
            for stream in self._streams.values()
            if stream.cursor is not None and stream.damage is None
        )

    def pending(self) -> bool:
        """Return whether there is anything that a sync would carry."""
        return any(stream.ask or not self.stored(stream.name) for stream in self._streams.values())
