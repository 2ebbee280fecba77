"""Colours that colour-blind people can tell apart, on light and dark grounds, and lines to match.

They are Okabe and Ito's, with black replaced by a grey that shows on both grounds. Nothing is told
by colour alone: ranks with the same colour differ in their dashes, marks in their symbols.
"""

from __future__ import annotations

COLORS = (
    "#2E86DE",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B8A800",
    "#7F8A99",
)
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", "x", ".", "-", "|")

SURVIVING = "#2E86DE"
ABANDONED = "#8A94A3"
BAD = "#D62839"
MARK = "#7F8A99"


def rank_line(rank: int) -> dict[str, object]:
    """Return the look of one rank's line: no two of 32 neighbours are alike."""
    return {
        "color": COLORS[rank % len(COLORS)],
        "dash": DASHES[rank // len(COLORS) % len(DASHES)],
        "width": 1.6,
    }
