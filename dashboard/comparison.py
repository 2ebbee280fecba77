"""What differs between runs: values of their specs, and how far each has come. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dashboard.charts.series import Series
from dashboard.data import Json

Differences = list[tuple[str, list[str]]]
"""Path of a value, and what each run has there, in JSON; empty where it has nothing."""


def differences(specs: Sequence[Json]) -> Differences:
    """Return the values in which the specs are not all alike, by path."""
    flat = [dict(_leaves(spec, "")) for spec in specs]
    paths = sorted({path for each in flat for path in each})
    rows = [(path, [each.get(path, "") for each in flat]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1]


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, inner in value.items()
            for leaf in _leaves(inner, f"{path}.{key}" if path else str(key))
        ]
    return [(path, json.dumps(value, ensure_ascii=False, sort_keys=True))]


def numbers_that_differ(specs: Sequence[Json]) -> list[tuple[str, tuple[float | None, ...]]]:
    """Return the paths at which the specs have different numbers, and these; None for none."""
    return [
        (path, tuple(_number(value) for value in values))
        for path, values in differences(specs)
        if all(not value or _number(value) is not None for value in values)
    ]


def _number(text: str) -> float | None:
    value = json.loads(text) if text else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def lowest(series: Series) -> tuple[float, int] | None:
    """Return the lowest finite value and its step; None where there is none."""
    finite = np.flatnonzero(np.isfinite(series.values))
    if not len(finite):
        return None
    at = finite[int(np.argmin(series.values[finite]))]
    return float(series.values[at]), int(series.steps[at])
