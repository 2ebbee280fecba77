"""What this process keeps of the runs that are being looked at: one place for each person and run,
shared by all their pages, so that many who look at one run cost little more than one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dashboard.charts.series import Series
from dashboard.tails import Wanted

MOST_PLACES = 48
"""Each may hold some megabytes of points."""
_MOST_DRAWN = 64

Drawn = Mapping[Wanted, Series]


@dataclass
class Place:
    """What is kept of one run for one person.

    Attributes:
        lock: held while a look is under way; who comes meanwhile gets what it found.
        memory: what the readers of the run remember from look to look.
        answers: what was answered a moment ago, by what was asked.
        drawn: what each page has drawn last.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    memory: dict[str, Any] = field(default_factory=dict)
    answers: dict[Any, Any] = field(default_factory=dict)
    drawn: OrderedDict[str, Drawn] = field(default_factory=OrderedDict)

    def draws(self, page: str, series: Drawn) -> None:
        """Remember what a page draws."""
        self.drawn[page] = series
        self.drawn.move_to_end(page)
        while len(self.drawn) > _MOST_DRAWN:
            self.drawn.popitem(last=False)


class Places:
    """The places of all who look; those that nobody has been at for the longest time go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Place] = OrderedDict()

    def of(self, who: str, run: str) -> Place:
        """Return the place of a run for a person."""
        with self._lock:
            place = self._kept.setdefault((who, run), Place())
            self._kept.move_to_end((who, run))
            while len(self._kept) > MOST_PLACES:
                self._kept.popitem(last=False)
            return place

    def forget(self, who: str) -> None:
        """Let the next looks of a person be read anew: they have just changed something."""
        with self._lock:
            for (whose, _), place in self._kept.items():
                if whose == who:
                    place.answers = {}


PLACES: Final = Places()
"""Of this process."""
