"""Stretches of series that a reader has zoomed into: their own points, and exact figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.charts.axis import Window
from dashboard.charts.series import Series
from dashboard.data import Json, Reader, several_body
from dashboard.tails import Wanted, by_request

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
    key = _key(run, wanted, window)
    if key in kept:
        return kept[key]
    found: dict[Wanted, Stretch] = {}
    for part in by_request(wanted):
        documents = reader.several(str(run["id"]), _asked(part, window))
        for each, document in zip(part, documents, strict=True):
            found[each] = Stretch(Series.read(document), document.get("statistics") or {})
    stretches = [found[each] for each in wanted]
    if window[1] < int(run.get("step") or 0):
        kept[key] = stretches
        while len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]
    return stretches


def ahead(kept: Stretches, run: Json, wanted: Sequence[Wanted], window: Window) -> list[Json]:
    """Return what `read_stretches` is about to ask for (`dashboard.data.several_body`), as far as
    can be known before the run is read again.
    """
    if _key(run, wanted, window) in kept:
        return []
    return [_asked(part, window) for part in by_request(wanted)]


def _key(run: Json, wanted: Sequence[Wanted], window: Window) -> Any:
    return (run["id"], run.get("generation"), window, tuple(wanted))


def _asked(wanted: Sequence[Wanted], window: Window) -> Json:
    everything, points, tokens = wanted[0].request
    return several_body(
        [(each.metric, each.rank) for each in wanted],
        all_generations=everything,
        after_step=window[0] - 1,
        until_step=window[1],
        points=points,
        statistics=True,
        tokens=tokens,
    )
