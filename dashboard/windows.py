"""Stretches of series that a reader has zoomed into: their own points, and exact figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.charts.axis import Window
from dashboard.charts.series import Series
from dashboard.data import Json, Reader, several_body
from dashboard.tails import Wanted

MOST_KEPT = 4


@dataclass(frozen=True, slots=True)
class Stretch:
    """A series within a window. `statistics` is of all its points there, however few are shown."""

    series: Series
    statistics: Json


Stretches = dict[Any, list[Stretch]]


def read_stretches(
    reader: Reader, kept: Stretches, run: Json, wanted: Sequence[Wanted], window: Window
) -> list[Stretch]:
    """Return the series that are `wanted` within `window`, in their order, thinned for it alone.

    What lies behind the newest step cannot change any more and is `kept`; a new generation may
    change what survives, and is read anew.
    """
    first, last = window
    key = (run["id"], run.get("generation"), window, tuple(wanted))
    if key in kept:
        return kept[key]
    found: dict[Wanted, Stretch] = {}
    for request in dict.fromkeys(each.request for each in wanted):
        part = [each for each in wanted if each.request == request]
        everything, points, tokens = request
        asked = several_body(
            [(each.metric, each.rank) for each in part],
            all_generations=everything,
            after_step=first - 1,
            until_step=last,
            points=points,
            statistics=True,
            tokens=tokens,
        )
        documents = reader.several(str(run["id"]), asked)
        for each, document in zip(part, documents, strict=True):
            found[each] = Stretch(Series.read(document), document.get("statistics") or {})
    stretches = [found[each] for each in wanted]
    if last < int(run.get("step") or 0):
        kept[key] = stretches
        while len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]
    return stretches
