"""The sequence of actions of each rank under the built-in schedules. Pure arithmetic.

The sequences are those of `torch.distributed.pipelining` in torch 2.13, without the idle slots that
it inserts: an action starts when its rank is free and its inputs are there, so slots say nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What an action computes. `B` is the whole backward; `I` gives the input's gradient, and `W`
    the weights' gradients later.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741


class Action(NamedTuple):
    """One computation of one rank: of `micro_batch` (from 0) on `stage` (from 0)."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Sequence = tuple[Action, ...]
Generator = Callable[[int, int, int], tuple[Sequence, ...]]
"""(ranks, virtual, micro_batches) -> the sequence of each rank."""


def gpipe(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """All forwards, then all backwards, both in order (Huang et al., 2019)."""
    return tuple(
        tuple(Action(rank, kind, each) for kind in (F, B) for each in range(micro_batches))
        for rank in range(ranks)
    )


def one_f_one_b(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """As few forwards ahead as keep the last stage busy, then forward and backward in turn
    (Narayanan et al., 2021).
    """
    return tuple(
        _alternating(rank, min(micro_batches, ranks - 1 - rank), micro_batches)
        for rank in range(ranks)
    )


def _alternating(stage: int, ahead: int, micro_batches: int) -> Sequence:
    actions = [Action(stage, F, each) for each in range(ahead)]
    for each in range(micro_batches - ahead):
        actions += [Action(stage, F, ahead + each), Action(stage, B, each)]
    actions += [Action(stage, B, each) for each in range(micro_batches - ahead, micro_batches)]
    return tuple(actions)


def looped_bfs(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """Breadth first: each stage of a rank takes all micro-batches before the next stage does
    (Lamy-Poirier, 2022).
    """

    def sequence(rank: int) -> Sequence:
        stages = range(rank, ranks * virtual, ranks)
        forwards = [Action(stage, F, each) for stage in stages for each in range(micro_batches)]
        backwards = [Action(each.stage, B, each.micro_batch) for each in reversed(forwards)]
        return (*forwards, *backwards)

    return tuple(sequence(rank) for rank in range(ranks))


def rounds(ranks: int, micro_batches: int) -> int:
    """Return into how many rounds of equal size interleaved schedules cut a step."""
    return max(1, micro_batches // ranks)


def interleaved_1f1b(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """1F1B over several stages per rank, in rounds of micro-batches (Narayanan et al., 2021)."""
    return tuple(
        _interleaved(rank, ranks, virtual, micro_batches, splits=False) for rank in range(ranks)
    )


def interleaved_zero_bubble(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """Interleaved 1F1B whose weight gradients wait until they can fill a bubble: ZB-H1 where
    `virtual` is 1 (Qi et al., 2023).
    """
    return tuple(
        _interleaved(rank, ranks, virtual, micro_batches, splits=True) for rank in range(ranks)
    )


def _interleaved(
    rank: int, ranks: int, virtual: int, micro_batches: int, *, splits: bool
) -> Sequence:
    per_round = micro_batches // rounds(ranks, micro_batches)
    total = virtual * micro_batches
    hops = ranks - 1 - rank
    ahead = min(total, (virtual - 1) * per_round + hops * (1 if splits else 2))

    def turns(kind: Kind, chunks: range) -> list[Action]:
        done = dict.fromkeys(chunks, 0)
        found = []
        for position in range(total):
            chunk = chunks[position // per_round % virtual]
            found.append(Action(chunk * ranks + rank, kind, done[chunk]))
            done[chunk] += 1
        return found

    forwards = turns(F, range(virtual))
    backwards = turns(I if splits else B, range(virtual - 1, -1, -1))
    actions = forwards[:ahead]
    weights = 0
    for position, backward in enumerate(backwards):
        if ahead + position < total:
            actions.append(forwards[ahead + position])
        actions.append(backward)
        # Rank r holds back r weight gradients: they fill the bubble at its end.
        if splits and position >= rank:
            actions.append(backwards[weights]._replace(kind=W))
            weights += 1
    if splits:
        actions += [each._replace(kind=W) for each in backwards[weights:]]
    return tuple(actions)


class _Rank:
    """A rank of a V with two stages, `near` on the way down and `far` on the way back."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.near, self.far = rank, 2 * ranks - 1 - rank
        self.actions: list[Action] = []
        self._done: dict[tuple[int, Kind], int] = {}
        self._owed: deque[Action] = deque()

    def add(self, stage: int, kind: Kind) -> None:
        """Add the next action of this kind on this stage."""
        count = I if kind is B else kind
        micro_batch = self._done.get((stage, count), 0)
        self._done[(stage, count)] = micro_batch + 1
        self.actions.append(Action(stage, kind, micro_batch))
        if kind is I:
            self._owed.append(Action(stage, W, micro_batch))

    def add_owed_weight(self, stage: int | None = None) -> None:
        """Add the longest owed weight gradient (of `stage`), if one is owed."""
        for action in self._owed:
            if stage is None or action.stage == stage:
                self._owed.remove(action)
                self.actions.append(action)
                return

    def done(self, stage: int, kind: Kind) -> int:
        """Return how many of this kind stand for this stage."""
        return self._done.get((stage, kind), 0)


def zbv_zero_bubble(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """Zero bubble on a V: no bubble where forward and both halves of backward take equal times
    (Qi et al., 2023, section 6).
    """
    # Generated for as many micro-batches as fill the V; those beyond the asked number fall away.
    full = max(2 * ranks - 1, micro_batches)

    def sequence(rank: int) -> Sequence:
        v = _Rank(rank, ranks)
        for _ in range(2 * (ranks - rank) - 1):
            v.add(v.near, F)
        for _ in range(rank):
            v.add(v.far, F)
            v.add(v.near, F)
        for _ in range(ranks - rank):
            v.add(v.far, F)
            v.add(v.far, I)
            v.add_owed_weight()
        while v.done(v.far, F) < v.done(v.near, F) or v.done(v.near, F) < full:
            if v.done(v.near, F) < full:
                v.add(v.near, F)
            v.add(v.near, I)
            v.add_owed_weight()
            v.add(v.far, F)
            v.add(v.far, I)
            v.add_owed_weight()
        for _ in range(rank):
            v.add(v.near, I)
            v.add(v.far, I)
        for _ in range(ranks - rank):
            v.add(v.near, I)
            v.add_owed_weight(v.near)
        for stage in (v.far, v.near):
            for _ in range(rank):
                v.add_owed_weight(stage)
        return tuple(action for action in v.actions if action.micro_batch < micro_batches)

    return tuple(sequence(rank) for rank in range(ranks))


def dualpipev(ranks: int, virtual: int, micro_batches: int) -> tuple[Sequence, ...]:
    """DualPipe folded into a V: forwards and backwards of both directions in turn (DeepSeek,
    2024). What torch may overlap stands here as forward, then backward.
    """

    def sequence(rank: int) -> Sequence:
        v = _Rank(rank, ranks)
        hops = ranks - 1 - rank
        for _ in range(2 * hops):
            v.add(v.near, F)
        for _ in range(rank + 1):
            v.add(v.near, F)
            v.add(v.far, F)
        for _ in range(hops):
            v.add(v.far, I)
            v.add_owed_weight()
            v.add(v.far, F)
        for _ in range(micro_batches - 2 * ranks + rank + 1):
            v.add(v.near, F)
            v.add(v.far, B)
            v.add(v.far, F)
            v.add(v.near, B)
        for _ in range(hops):
            v.add(v.far, B)
            v.add(v.far, F)
            v.add(v.near, B)
        _ending(v, rank, hops)
        return tuple(v.actions)

    return tuple(sequence(rank) for rank in range(ranks))


def _ending(v: _Rank, rank: int, hops: int) -> None:
    """Add the last backwards of DualPipeV; from the middle of them on, weights are held back."""
    turns = rank + 1
    # The first split is on the far stage of odd ranks, on the near stage of even ones.
    first_split = 2 * (turns // 2) + (0 if rank % 2 else 1)
    for position in range(2 * turns):
        v.add(v.near if position % 2 else v.far, I if position >= first_split else B)
    for _ in range(hops):
        v.add_owed_weight()
        v.add(v.near, I)
    for _ in range(turns):
        v.add_owed_weight()
