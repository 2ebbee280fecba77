"""What is bad everywhere is told once: of the node, or of the run, and not of each of its ranks.
Values only.
"""

from __future__ import annotations

import numpy as np

from control.rules.frame import Frame
from control.rules.judgement import RUN
from control.rules.signs import BAD, BETWEEN, GOOD, SILENT, Codes

MOST = 0.75
"""The share of a node's ranks that are bad together: a light stage may stay below a rule's bar."""


def widened(frame: Frame, codes: Codes) -> Codes:
    """Return the codes of members, some of which stand for others that come before them."""
    wide = [place for place, parts in enumerate(frame.parts) if parts]
    if not wide:
        return codes
    found = codes.copy()
    for place in wide:
        needed = 1.0 if frame.members[place] == RUN else MOST
        found[place] = _together(found[list(frame.parts[place])], needed)
    told = {place: found[place] >= BAD for place in wide}
    for place, where in told.items():
        for part in frame.parts[place]:
            found[part, where] = np.minimum(found[part, where], GOOD)
    return found


def _together(codes: Codes, share: float) -> Codes:
    is_bad = (codes >= BAD).sum(axis=0) >= share * len(codes)
    is_known = (codes != SILENT).any(axis=0)
    is_good = (codes == GOOD).any(axis=0) | (codes >= BAD).any(axis=0)
    good = np.where(is_good, GOOD, BETWEEN)
    joined: Codes = np.where(is_bad, BAD, np.where(is_known, good, SILENT)).astype(np.int8)
    return joined
