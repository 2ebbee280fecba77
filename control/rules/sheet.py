"""CSVs as history: a header, then a row per step, or a row per step and rank.

Columns that are no metric of the rules are never read, so notes and names may stand beside numbers.
An empty cell was not measured; `nan`, `inf` and `-inf` were. A step that comes again began anew:
what it redid does not count. Where no step comes again and no clock says otherwise, rows out of
order are put in order. Rows of several runs, or of several sections of a log, are a history
each: they have no past in common.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from control.rules.frame import Bools, Column, Floats
from control.rules.history import History, history_of
from control.rules.names import columns_of, split
from trainmaster.errors import Problem, SpecError

STEP_NAMES = ("step", "iteration")
STEP_NAME_BY_RANK = "time"
"""What tables of workers call the step; elsewhere a time is no step."""

RANK_NAMES = ("rank", "worker")
TIME_NAMES = ("at", "time_s")
STORY_NAMES = ("run", "section")
ALIASES = {"train_loss": "loss", "lm_loss": "loss", "batch_time_norm": "compute_s"}
"""What others call a metric of ours; our own name goes first where both are there."""

MAX_ROWS = 5_000_000
MAX_STORIES = 100
MAX_STEP = 2**53
MAX_RANK_COLUMNS = 100_000
MAX_RANKS = 10_000
MAX_GAPS = 4_000_000
"""Places, a step and a rank each, that may be without a row: a table has room for each of them."""
BLOCK_ROWS = 4096


def read(name: str, lines: Iterable[str], metrics: Iterable[str]) -> list[History]:
    """Return what a CSV tells of `metrics`: one history, or one of each run and section where the
    columns `run` and `section` name several.

    Raises:
        SpecError: with the line, and the column.
    """
    reader = csv.reader(lines)
    header = _header(reader)
    twice = sorted(each for each, times in Counter(header).items() if each and times > 1)
    if twice:
        raise SpecError([Problem(each, "stands twice in the header", 1) for each in twice])
    rank_name = next((each for each in RANK_NAMES if each in header), None)
    step_name = _step_name(header, by_rank=rank_name is not None)
    cells = _cells(reader, header)
    steps = _steps(cells[step_name], step_name)
    chosen = _chosen(header, frozenset(metrics))
    columns = {shown: _numbers(cells[column], column) for column, shown in chosen.items()}
    time_name = next((each for each in TIME_NAMES if each in header), None)
    at = _times(cells[time_name], time_name) if time_name is not None else None
    ranks = _steps(cells[rank_name], rank_name) if rank_name is not None else None
    read_as = {**chosen, step_name: "step"}
    if rank_name is not None:
        read_as[rank_name] = "rank"
    notes = [
        f"{column} is read as {shown}."
        for column, shown in read_as.items()
        if column != shown and column != "iteration"
    ]
    return [
        _history(
            story,
            [steps[row] for row in rows] if rows is not None else steps,
            at if at is None or rows is None else at[rows],
            ranks if ranks is None or rows is None else [ranks[row] for row in rows],
            columns if rows is None else _only(columns, rows),
            list(notes),
        )
        for story, rows in _stories(name, cells)
    ]


def _header(reader: Iterator[list[str]]) -> list[str]:
    try:
        header = [cell.strip() for cell in next(reader, [])]
    except csv.Error as error:
        raise SpecError([Problem("", f"is no CSV: {error}", 1)]) from error
    if header:
        header[0] = header[0].lstrip("\ufeff")
    by_rank = sum("@" in cell for cell in header)
    if by_rank > MAX_RANK_COLUMNS:
        why = f"has {by_rank} columns of ranks, and {MAX_RANK_COLUMNS} are the most"
        raise SpecError([Problem("", why, 1)])
    return header


def _step_name(header: Sequence[str], *, by_rank: bool) -> str:
    """Return the column that tells the step.

    Raises:
        SpecError: there is none; it says how to name columns.
    """
    names = (*STEP_NAMES, STEP_NAME_BY_RANK) if by_rank else STEP_NAMES
    found = next((each for each in names if each in header), None)
    if found is None:
        how = "a row per step `step,loss,grad_norm`, per step and rank `step,rank,compute_s`"
        why = f"is needed: the header names no column `step`; columns are named {how}"
        if len(header) == 1 and set(header[0]) & set(";\t"):
            why = "is needed: cells are separated by commas, and the header has none"
        raise SpecError([Problem("step", why, 1)])
    return found


def _stories(
    name: str, cells: Mapping[str, Sequence[str]]
) -> list[tuple[str, NDArray[np.int64] | None]]:
    """Return the name and the rows of each history: None for all rows.

    Raises:
        SpecError: they are too many to be told apart.
    """
    told = [cells[each] for each in STORY_NAMES if each in cells]
    differing = [column for column in told if len(set(column)) > 1]
    if not differing:
        return [(name, None)]
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(zip(*differing, strict=True)):
        rows.setdefault(key, []).append(row)
    if len(rows) > MAX_STORIES:
        column = next(each for each in STORY_NAMES if each in cells)
        why = f"tells {len(rows)} runs and sections apart, and {MAX_STORIES} are the most"
        raise SpecError([Problem(column, why)])
    return [
        (f"{name} ({', '.join(key)})", np.array(mine, dtype=np.int64)) for key, mine in rows.items()
    ]


def _only(columns: Mapping[str, Column], rows: NDArray[np.int64]) -> dict[str, Column]:
    return {
        each: Column(column.values[:, rows], column.measured[:, rows])
        for each, column in columns.items()
    }


def _cells(reader: Iterator[list[str]], header: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return column -> its cells.

    Rows are turned into columns some at a time: a million of them at once would keep the garbage
    collector busy for longer than reading takes.
    """
    columns: list[list[str]] = [[] for _ in header]
    read = 0
    try:
        while block := list(itertools.islice(reader, BLOCK_ROWS)):
            rows = [row for row in block if row]
            if not set(map(len, rows)) <= {len(header)}:
                _refuse_ragged(rows, header, read)
            for column, cells in zip(columns, zip(*rows, strict=True), strict=False):
                column.extend(cells)
            read += len(rows)
            if read > MAX_ROWS:
                raise SpecError([Problem("", f"has more than {MAX_ROWS} rows")])
    except csv.Error as error:
        raise SpecError([Problem("", f"is no CSV: {error}")]) from error
    return dict(zip(header, columns, strict=True))


def _refuse_ragged(rows: Iterable[list[str]], header: Sequence[str], before: int) -> None:
    for line, row in enumerate(rows, before + 2):
        if len(row) != len(header):
            why = f"has {len(row)} cells, and the header {len(header)}"
            raise SpecError([Problem("", why, line)])


def _chosen(header: Sequence[str], metrics: frozenset[str]) -> dict[str, str]:
    """Return column -> the name under which it is read."""
    chosen: dict[str, str] = {}
    for column in header:
        if "@" not in column:
            if column in metrics:
                chosen[column] = column
        elif split(column)[0] in metrics:
            chosen[column] = column
    for column, metric in ALIASES.items():
        told = {split(each)[0] for each in chosen.values()}
        if column in header and metric in metrics and metric not in told:
            chosen[column] = metric
    return chosen


def _steps(cells: Sequence[str], name: str) -> list[int]:
    try:
        found = list(map(int, cells))
    except ValueError:
        found = [_step(cell, name, line) for line, cell in enumerate(cells, 2)]
    if found and not -MAX_STEP <= min(found) <= max(found) <= MAX_STEP:
        line, beyond = next(
            (line, step) for line, step in enumerate(found, 2) if abs(step) > MAX_STEP
        )
        raise SpecError([Problem(name, f"must lie within {MAX_STEP}, not {beyond}", line)])
    return found


def _step(cell: str, name: str, line: int) -> int:
    try:
        number = float(cell)
        if not number.is_integer():
            raise ValueError
    except (ValueError, OverflowError):
        raise SpecError([Problem(name, f"must be a whole number, not {cell!r}", line)]) from None
    return int(number)


def _numbers(cells: Sequence[str], name: str) -> Column:
    try:
        # Most columns have no empty cell; reading is the greater part of a back-test.
        if "" not in cells:
            whole = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
            return Column(whole[None, :], np.ones((1, len(cells)), dtype=bool))
        values = [float(cell) if cell else 0.0 for cell in cells]
        measured = np.array([cell != "" for cell in cells], dtype=bool)
    except ValueError:
        values, told = [], []
        for line, cell in enumerate(cells, 2):
            text = cell.strip()
            try:
                values.append(float(text) if text else 0.0)
            except ValueError:
                raise SpecError([Problem(name, f"must be a number, not {cell!r}", line)]) from None
            told.append(text != "")
        measured = np.array(told, dtype=bool)
    return Column(np.array(values, dtype=np.float64)[None, :], measured[None, :])


def _times(cells: Sequence[str], name: str) -> Floats | None:
    """Return seconds; None where some are missing."""
    found = []
    for line, cell in enumerate(cells, 2):
        text = cell.strip()
        if not text:
            return None
        try:
            found.append(float(text))
        except ValueError:
            try:
                told = datetime.fromisoformat(text)
            except ValueError:
                why = f"must be seconds, or an instant such as 2030-01-31T12:00:00Z, not {cell!r}"
                raise SpecError([Problem(name, why, line)]) from None
            found.append((told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp())
    return np.array(found)


def _history(
    name: str,
    steps: Sequence[int],
    at: Floats | None,
    ranks: Sequence[int] | None,
    columns: Mapping[str, Column],
    notes: list[str],
) -> History:
    if ranks is not None:
        steps, at, columns = _by_rank(steps, at, ranks, columns)
    numbers = np.array(steps, dtype=np.int64)
    order = _order(numbers, at)
    if order is not None:
        numbers, columns = numbers[order], _only(columns, order)
        at = None if at is None else at[order]
        notes.append("The rows were not in the order of their steps; they were put in order.")
    kept, begins = _surviving(numbers)
    if len(kept) < len(numbers):
        notes.append(f"{len(numbers) - len(kept)} rows were redone later and do not count.")
    table = columns_of(_only(columns, kept))
    of_ranks = table.of_ranks.get("loss")
    if of_ranks is not None and len(of_ranks.values) == 1 and "loss" not in table.of_run:
        alone = f"The loss is that of rank {table.seats[0].rank} alone, noisier than the mean."
        notes.append(alone)
    return history_of(
        name,
        numbers[kept].tolist(),
        table.of_run,
        at=None if at is None else at[kept].tolist(),
        begins=begins.tolist(),
        of_ranks=table.of_ranks,
        seats=table.seats,
        notes=notes,
    )


def _order(steps: NDArray[np.int64], at: Floats | None) -> NDArray[np.int64] | None:
    """Return the order of rows that lie about; None where they stand as they were written: in the
    order of steps, or of a clock, or with steps that were done again.
    """
    in_time = at is not None and bool(np.all(np.diff(at) >= 0))
    if in_time or bool(np.all(np.diff(steps) > 0)) or len(np.unique(steps)) < len(steps):
        return None
    return np.argsort(steps)


def _surviving(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[np.ndarray, Bools]:
    """Return the places of the rows that no later row redid, and where a row begins anew."""
    if not len(steps):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    later = np.minimum.accumulate(steps[::-1])[::-1]
    lowest_after = np.append(later[1:], np.iinfo(np.int64).max)
    kept = np.flatnonzero(steps < lowest_after)
    back = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1) <= 0)
    begins = np.zeros(len(kept), dtype=bool)
    begins[np.minimum(np.searchsorted(kept, back), len(kept) - 1)] = True
    if steps[kept[0]] <= 1:
        begins[0] = True
    return kept, begins


def _by_rank(
    steps: Sequence[int],
    at: Floats | None,
    ranks: Sequence[int],
    columns: Mapping[str, Column],
) -> tuple[list[int], Floats | None, dict[str, Column]]:
    """Return a row per step, and a column per metric and rank."""
    order, members = sorted(set(steps)), sorted(set(ranks))
    if len(members) > MAX_RANKS:
        raise SpecError([Problem("rank", f"names {len(members)} ranks; at most {MAX_RANKS}")])
    if len(order) * len(members) - len(steps) > MAX_GAPS:
        why = f"has {len(steps)} rows for {len(order)} steps of {len(members)} ranks: most are gaps"
        raise SpecError([Problem("rank", why)])
    place = {step: number for number, step in enumerate(order)}
    rows = np.array([place[step] for step in steps])
    everyone = np.array(ranks)
    found: dict[str, Column] = {}
    for name, column in columns.items():
        if "@" in name:
            raise SpecError([Problem(name, "goes with one row per step: there is a column `rank`")])
        for rank in members:
            mine = everyone == rank
            values = np.zeros((1, len(order)))
            measured = np.zeros((1, len(order)), dtype=bool)
            values[0, rows[mine]] = column.values[0, mine]
            measured[0, rows[mine]] = column.measured[0, mine]
            found[f"{name}@rank={rank}"] = Column(values, measured)
    if at is not None:
        newest = np.full(len(order), -np.inf)
        np.maximum.at(newest, rows, at)
        at = newest
    return order, at, found
