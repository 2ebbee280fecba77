"""Exact figures of a window, as a line below its chart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.data import Json
from dashboard.formats import number
from dashboard.i18n import Translator


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all points of a window, of all ranks where there are several.

    Attributes:
        std: of one series; None where there are several.
        least_rank: where ranks differ, the one that had the least; None where they do not.
    """

    count: int
    non_finite: int
    mean: float
    std: float | None
    least: float
    least_step: int
    greatest: float
    greatest_step: int
    least_rank: int | None = None
    greatest_rank: int | None = None


def figures(told: Sequence[tuple[int | None, Json]], *, scale: float = 1.0) -> Figures | None:
    """Return the figures of series that are told as (rank, the API's statistics); None where
    nothing was measured.

    Args:
        scale: what values are multiplied by to be in the unit of the chart.
    """
    some = [(rank, each) for rank, each in told if each.get("count")]
    if not some:
        return None
    count = sum(int(each["count"]) for _, each in some)
    least_rank, least = min(some, key=lambda pair: float(pair[1]["min"]))
    greatest_rank, greatest = max(some, key=lambda pair: float(pair[1]["max"]))
    mean = sum(float(each["mean"]) * int(each["count"]) for _, each in some) / count
    return Figures(
        count=count,
        non_finite=sum(int(each.get("non_finite") or 0) for _, each in told),
        mean=mean * scale,
        std=float(some[0][1]["std"]) * scale if len(some) == 1 else None,
        least=float(least["min"]) * scale,
        least_step=int(least["min_step"]),
        greatest=float(greatest["max"]) * scale,
        greatest_step=int(greatest["max_step"]),
        least_rank=least_rank,
        greatest_rank=greatest_rank,
    )


def figures_text(found: Figures | None, t: Translator) -> str:
    """Say the figures in one line."""
    if found is None:
        return ""
    parts = [
        t("figures.count", count=number(found.count)),
        _extreme(t, "figures.least", found.least, found.least_step, found.least_rank),
        t("figures.mean", value=number(found.mean)),
        _extreme(t, "figures.greatest", found.greatest, found.greatest_step, found.greatest_rank),
    ]
    if found.std is not None:
        parts.append(t("figures.std", value=number(found.std)))
    if found.non_finite:
        parts.append(t("figures.non_finite", count=number(found.non_finite)))
    return " · ".join(parts)


def _extreme(t: Translator, key: str, value: float, step: int, rank: int | None) -> str:
    told = t(key, value=number(value), step=number(step))
    return told if rank is None else f"{told}, {t('figures.rank', rank=rank)}"
