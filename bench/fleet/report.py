"""What a fleet bench found: a table, and charts of what a node, a run and a rule cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

COLUMNS = (
    "nodes",
    "runs x ranks",
    "rules",
    "syncs/s",
    "p50 ms",
    "p99 ms",
    "max ms",
    "failed",
    "cores: control",
    "database",
    "agents",
    "ms a sync",
    "turns behind s",
)


def line(result: Json) -> str:
    """Return one measurement as a row of the table."""
    case, cores = result["case"], result["cpu_cores"]
    cells = [
        f"{case['nodes']}{' at 1 Hz' if case['raw'] else ''}",
        f"{case['runs']} x {case['ranks']}" if case["runs"] else "0",
        f"{case['rules']} more" if case["rules"] else "default",
        f"{result['syncs_per_s']:.0f}",
        *(f"{1e3 * result[name]:.0f}" for name in ("p50_s", "p99_s", "max_s")),
        str(result["failures"]),
        *(f"{cores[kind]:.2f}" for kind in ("control", "database", "agents")),
        f"{result['cpu_ms_per_sync']:.2f}",
        f"{result['turns_behind_s']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def table(results: Sequence[Json]) -> str:
    """Return all measurements as Markdown."""
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    racks = [f"\nRack: {result['rack']}" for result in results if result["rack"]]
    return "\n".join([*head, *map(line, results), *racks]) + "\n"


def charts(results: Sequence[Json]) -> str | None:
    """Return an HTML page of the charts; None where plotly is not installed."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError:
        return None
    by = {"nodes": "idle nodes", "runs": "runs of 10 ranks", "rules": "rules beside the default"}
    figure = make_subplots(
        rows=1, cols=3, subplot_titles=[f"cores by {name}" for name in by.values()]
    )
    for column, of in enumerate(by, start=1):
        found = sorted(_of(results, of), key=lambda result: result["case"][of])
        for kind, colour in (("control", "#1f77b4"), ("database", "#d62728")):
            figure.add_trace(
                go.Scatter(
                    x=[result["case"][of] for result in found],
                    y=[result["cpu_cores"][kind] for result in found],
                    mode="lines+markers",
                    marker={"symbol": "circle" if kind == "control" else "square"},
                    line={"color": colour, "dash": "solid" if kind == "control" else "dot"},
                    name=kind,
                    showlegend=column == 1,
                ),
                row=1,
                col=column,
            )
        figure.update_xaxes(title_text=by[of], row=1, col=column)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title_text="processor cores", row=1, col=1)
    figure.update_layout(
        template="plotly_white", width=1200, height=420, title="What a fleet costs"
    )
    page: str = figure.to_html(include_plotlyjs=True, config={"displaylogo": False})
    return page


def _of(results: Sequence[Json], varied: str) -> list[Json]:
    """Return the results of the cases in which that alone differs."""

    def belongs(case: Json) -> bool:
        if varied == "nodes":
            return bool(case["runs"] == 0)
        return bool(case["series"] == varied)

    return [result for result in results if belongs(result["case"])]
