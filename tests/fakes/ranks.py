"""Ranks and descriptions without torch, for a real nest to fork.

The `params` of the spec say what a rank does:

steps, step_s      how many steps, how long each
exit_code          how it ends
fail_rank          the one rank that ends so; the others go on for ever
stubborn           ignores SIGTERM
"""

from __future__ import annotations

import signal
import time

from trainmaster.errors import Problem, SpecError
from trainmaster.facts import Event
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.spool import MISSING, Header, encode_event, encode_header, encode_row
from trainmaster.wire import WorkloadInfo
from worker.launch import Launch


def main(launch: Launch) -> int:
    entered = time.time()
    params = launch.assignment.spec.params
    if params.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"rank {launch.rank} begins")
    stream = f"{launch.assignment.run}/{launch.assignment.generation}/{launch.rank}"
    header = Header(stream, STEP_METRIC_NAMES)
    layout = header.row_struct()
    chosen = launch.rank == params.get("fail_rank", launch.rank)
    with launch.spool.open("ab", buffering=0) as spool:
        spool.write(encode_header(header))
        begun = Event(kind="rank_ready", at="2026-01-01T00:00:00Z", data={"entered": entered})
        spool.write(encode_event(begun.model_dump_json().encode()))
        step = 0
        while not chosen or step < params.get("steps", 3):
            step += 1
            values = dict.fromkeys(STEP_METRIC_NAMES, MISSING) | {
                "loss": 5.0 / step if step != 2 else float("nan"),
                "applied": float(step != 2),
                "tokens": 64.0,
                "step_time_s": 0.3,
                "latency_ms": 3.0,
                "bandwidth_bytes_per_s": 1e6,
                "checkpoint_stall_s": 0.0,
            }
            row = [values[name] for name in STEP_METRIC_NAMES]
            spool.write(encode_row(layout, step, time.time(), row))
            time.sleep(params.get("step_s", 0.01))
    return int(params.get("exit_code", 0))


def describe(workload: str, params: dict[str, object], data: str) -> WorkloadInfo:
    if params.get("wrong"):
        raise SpecError([Problem("params.wrong", "is not known", 3)])
    if params.get("crash"):
        raise RuntimeError("the workload broke")
    return WorkloadInfo(num_layers=8, num_parameters=100, num_samples=1000, code_sha256="0" * 64)
