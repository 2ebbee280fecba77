"""`python -m bench.ingest`: points a second from spool to SQL, how long a logging call keeps its
step, bytes per point, and how long reading takes, beside what others do. See docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from bench.ingest.measure import SERIES_POINTS, measure
from bench.ingest.report import chart, markdown
from bench.ingest.site import DATABASES
from bench.peers.__main__ import PEERS


def main() -> None:
    """Measure, print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, help="only this one")
    parser.add_argument("--nodes", type=_counts, default=[1, 4], help="1,4")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each blocking measurement")
    parser.add_argument("--steps", type=int, default=SERIES_POINTS, help="of one point per metric")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peers", type=_names, default=list(PEERS), help="a,b; or none")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="of the environment with the peers"
    )
    parser.add_argument("--out", type=Path, help="a folder for ingest.json, .md and .html")
    given = parser.parse_args()
    # So that an end from outside also ends what was started here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told = measure(
        databases=[given.database] if given.database else DATABASES,
        nodes=given.nodes,
        peers=given.peers,
        peer_python=given.peer_python,
        seconds=given.seconds,
        steps=given.steps,
        repetitions=given.repetitions,
        say=lambda line: print(f"... {line}", file=sys.stderr, flush=True),
    )
    page = markdown(told)
    print(page)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "ingest.json").write_text(json.dumps(told, indent=1) + "\n")
        (given.out / "ingest.md").write_text(page)
        drawn = chart(told)
        if drawn is None:
            print("no chart: plotly is not installed", file=sys.stderr)
        else:
            (given.out / "ingest.html").write_text(drawn)


def _counts(text: str) -> list[int]:
    counts = [int(each) for each in text.split(",") if each]
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError("numbers of nodes like 1,4")
    return counts


def _names(text: str) -> list[str]:
    names = [each for each in text.split(",") if each and each != "none"]
    unknown = [each for each in names if each not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(PEERS)}")
    return names


if __name__ == "__main__":
    main()
