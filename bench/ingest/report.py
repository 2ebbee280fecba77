"""What was measured, as tables for people and as a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]

LIFE = {
    "flat_out": "flat out",
    "computing": "100 steps/s, computing between",
    "idle": "100 steps/s, asleep between",
    "disk_full": "100 steps/s, computing, disk full",
}


def markdown(told: Json) -> str:
    """Return the tables, with the conditions above them."""
    parts = [_conditions(told), *_ingest(told), *_reads(told), _blocking(told)]
    if told["peers"]:
        parts.append(_peers(told))
    return "\n\n".join(parts) + "\n"


def _conditions(told: Json) -> str:
    seen = told["conditions"]
    versions = ", ".join(f"{name} {version}" for name, version in seen["versions"].items())
    load, after = (
        " ".join(map(str, seen[name])) for name in ("load_average", "load_average_after")
    )
    return (
        f"{seen['cores']} cores ({seen['cpu']}), {seen['memory_gib']} GiB, Linux {seen['kernel']}, "
        f"Python {seen['python']}; load average {load} before, {after} after. {versions}. "
        "Median of the repetitions, lowest and highest in brackets."
    )


def _ingest(told: Json) -> Iterable[str]:
    rows = []
    for kind, database in told["databases"].items():
        for nodes, passage in database["passages"].items():
            rows.append(
                (
                    kind,
                    nodes,
                    f"{passage['points']:,}",
                    spread(passage["points_per_s"], "{:,.0f}"),
                    spread(passage["control_us_per_point"], "{:.2f}"),
                    spread(passage["agents_us_per_point"], "{:.2f}"),
                    spread(passage["bytes_per_point"], "{:.1f}"),
                )
            )
    if rows:
        yield "### From spool to queryable SQL"
        yield table(
            "database|nodes|points|points/s|control µs/point|agents µs/point|bytes/point", rows
        )
        yield "; ".join(
            f"{kind}: {database['flushes']}" for kind, database in told["databases"].items()
        )


def _reads(told: Json) -> Iterable[str]:
    rows = []
    for kind, database in told["databases"].items():
        if "reads" in database:
            reads = database["reads"]
            for exact, wanted in ((True, f"{reads['points']:,}, exact"), (False, "2,000")):
                name = "exact" if exact else "few"
                figures = (reads[name], reads[f"{name}_http"], reads[f"{name}_parsed"])
                rows.append((kind, wanted, *(spread(each, "{:.1f}") for each in figures)))
    if rows:
        yield "### Reading one series"
        yield table("database|points|storage, ms|HTTP, ms|HTTP and parsed, ms", rows)


def _blocking(told: Json) -> str:
    rows = [
        (LIFE[life], *_durations(told["blocking"][life]))
        for life in LIFE
        if life in told["blocking"]
    ]
    return f"### How long logging {told['metrics']} metrics keeps a step\n\n" + table(
        "life|p50, µs|p99, µs|max, µs", rows
    )


def _durations(found: Json) -> Sequence[str]:
    return [spread(found[name], "{:,.1f}") for name in ("p50_us", "p99_us", "max_us")]


def _peers(told: Json) -> str:
    rows = []
    for name, found in told["peers"].items():
        if "absent" in found:
            rows.append((f"{name}: {found['absent']}", *[""] * 6))
            continue
        version = ", ".join(f"{package} {number}" for package, number in found["versions"].items())
        read = spread(found["read_ms"], "{:,.0f}") if "read_ms" in found else "cannot be read"
        rows.append(
            (
                version,
                spread(found["points_per_s"], "{:,.0f}"),
                *(
                    " / ".join(
                        f"{found[life][figure]['median']:,.0f}"
                        for figure in ("p50_us", "p99_us", "max_us")
                    )
                    for life in ("flat_out", "computing", "idle")
                ),
                read,
                spread(found["bytes_per_point"], "{:.0f}"),
            )
        )
    heads = (
        "peer|points/s|flat out, µs|computing, µs|asleep, µs|100,000 points read, ms|bytes/point"
    )
    return f"### Others, one process (p50 / p99 / max)\n\n{table(heads, rows)}"


def table(heads: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table; `heads` are parted by bars."""
    names = heads.split("|")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(found: Json, form: str) -> str:
    """Return the median with what it lies between."""
    median, low, high = (form.format(found[name]) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def chart(told: Json) -> str | None:
    """Return an HTML page that shows ours beside the others; None where plotly is not installed."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError:
        return None
    speeds = {
        f"Trainmaster, {kind}, {nodes} nodes": passage["points_per_s"]
        for kind, database in told["databases"].items()
        for nodes, passage in database["passages"].items()
    }
    keeps = {"Trainmaster": told["blocking"]}
    for name, found in told["peers"].items():
        if "absent" not in found:
            speeds[name], keeps[name] = found["points_per_s"], found
    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("points/s", "logging call while computing, µs: p50 and p99")
    )
    figure.add_trace(
        go.Bar(
            x=list(speeds),
            y=[each["median"] for each in speeds.values()],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [each["high"] - each["median"] for each in speeds.values()],
                "arrayminus": [each["median"] - each["low"] for each in speeds.values()],
            },
            name="points/s",
        ),
        row=1,
        col=1,
    )
    for name in ("p50_us", "p99_us"):
        values = [each["computing"][name]["median"] for each in keeps.values()]
        figure.add_trace(go.Bar(x=list(keeps), y=values, name=name[:3]), row=1, col=2)
    figure.update_yaxes(type="log")
    figure.update_layout(title="From a logging call to SQL", template="plotly_white")
    page: str = figure.to_html(include_plotlyjs=True, config={"displaylogo": False})
    return page
