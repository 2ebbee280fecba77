"""`python -m tests.campaigns.planned [--only NAME ...] [--write]`: runs that are left to the
planner (`parallel: auto`), live. A device slows down while it is trained on; faster nodes join one
after the other; nodes measure themselves and the layers before they are planned for; plans of
several kinds are carried out. Some minutes, on a machine that does nothing else. With `--write`
what was seen goes into docs/campaigns/planned.md, each story in the place of the one before under
its name.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bench.conditions import conditions
from control.planner import automatic
from control.planner.machine import Machine, stated_link
from tests.campaigns.planned_page import page
from tests.campaigns.telling import FOLDER, Json, Story, tell
from tests.distributed.ranks import plan_of, tiny_spec, trained
from tests.scenarios.ring import ROOT, TRAINMASTER, Ring, running, tiny, until
from trainmaster.emulation import Link
from trainmaster.layout import nodes_of
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from worker.launch import Emulation

KEPT, PAGE = FOLDER / "planned.json", FOLDER / "planned.md"
MARK = "<!-- from here on as the campaign wrote it -->"
DRIFTS_AT, DRIFTS_TO, DRIFT_STEPS = 50, 0.4, 200
REPLAN_AFTER_S, JOIN_STEPS = 20.0, 600
SLOW, FAST = {"layer_time_s": 0.04}, {"layer_time_s": 0.01}


def drift(folder: Path, corpus: Path) -> Json:
    """A device falls to 0.4 of its speed: the rule `node drifts` has the run planned anew."""
    device = {"layer_time_s": 0.01}
    slows = {**device, "drift": {"at_step": DRIFTS_AT, "speed": DRIFTS_TO}}
    nodes = [
        {"name": "oak", "slots": 1, "emulate": device},
        {"name": "ash", "slots": 1, "emulate": {"layer_time_s": 0.0125}},
        {"name": "elm", "slots": 1, "emulate": slows},
    ]
    spec = {**tiny("drifts", corpus, steps=DRIFT_STEPS, global_batch=48), "parallel": "auto"}
    with running(folder / "home", nodes=nodes) as ring:
        until_present(ring, len(nodes))
        run = ring.submit(spec)
        done = ring.wait_for(run, "succeeded", within_s=280)
        took = step_seconds(ring, run)
        told = [(each["kind"], each["because"]) for each in ring.events(run)]
        assert len(done["attempts"]) > 1, f"the run never went over to another plan: {told}"
        moved = done["attempts"][-1]
        went_on = moved["resumed_from_step"] + 1
        return {
            "plans": [layout(each["plan"]) for each in done["attempts"]],
            "causes": [each["cause"] for each in done["attempts"]],
            "because": [each["because"] for each in ring.events(run, "rule_acted")],
            "drifts_at": DRIFTS_AT,
            "went_on_at": went_on,
            "predicted_s": [each["plan"]["predicted"]["step_time_s"] for each in done["attempts"]],
            "step_s": {
                "before": middle(took, 5, DRIFTS_AT),
                "slowed": middle(took, DRIFTS_AT, went_on),
                "after": middle(took, went_on + 3, DRIFT_STEPS + 1),
            },
            "steps_twice": len(ring.losses(run)) != DRIFT_STEPS,
            "wrong": [] if done["generation"] == 2 else [f"{done['generation']} generations"],
        }


def joins(folder: Path, corpus: Path) -> Json:
    """Two nodes four times as fast join a run, the second as soon as the first is in use."""
    nodes = [{"name": name, "slots": 1, "emulate": SLOW} for name in ("oak", "elm")]
    spec = {
        **tiny("joined", corpus, steps=JOIN_STEPS, global_batch=48),
        "parallel": "auto",
        "recovery": {"replan_after_s": REPLAN_AFTER_S},
    }
    with running(folder / "home", nodes=nodes) as ring, ExitStack() as agents:
        until_present(ring, len(nodes))
        run = ring.submit(spec)
        ring.wait_for_step(run, 5)
        for generation, name in ((2, "ash"), (3, "fig")):
            agents.enter_context(joining(ring, folder / name, name))
            ring.wait_for_generation(run, generation)
        done = ring.wait_for(run, "succeeded", within_s=900)
        took, attempts = step_seconds(ring, run), done["attempts"]
        ends = [each["resumed_from_step"] for each in attempts[1:]] + [JOIN_STEPS]
        begins = [each["resumed_from_step"] or 0 for each in attempts]
        moved = ring.events(run, "plan_joining")
        waited = [
            _seconds(one["ready_at"], move["at"])
            for one, move in zip(attempts, moved, strict=False)
        ]
        wrong = [] if done["generation"] == 3 else [f"{done['generation']} generations"]
        wrong += [] if len(moved) == 2 else [f"{len(moved)} moves"]
        wrong += [f"a move after {each:.1f} s" for each in waited if each < REPLAN_AFTER_S]
        if list(ring.losses(run)) != [*range(1, JOIN_STEPS + 1)]:
            wrong.append("not every step is there once")
        return {
            "plans": [layout(each["plan"]) for each in attempts],
            "causes": [each["cause"] for each in attempts],
            "because": [each["because"] for each in moved],
            "predicted_s": [each["plan"]["predicted"]["step_time_s"] for each in attempts],
            "steps": [[begin + 1, end] for begin, end in zip(begins, ends, strict=True)],
            "step_s": [
                middle(took, begin + 3, end + 1) for begin, end in zip(begins, ends, strict=True)
            ],
            "trained_s": waited,
            "between_s": [took_between(ring, run, step) for step in begins[1:]],
            "replan_after_s": REPLAN_AFTER_S,
            "wrong": wrong,
        }


@contextmanager
def joining(ring: Ring, home: Path, name: str) -> Iterator[None]:
    """An agent of a fast node that is started beside a Trainmaster, as on another machine."""
    profile = home.with_suffix(".json")
    profile.write_text(json.dumps({"emulate": FAST}), encoding="utf-8")
    made = ring.json("token", "create", "--role", "agent", "--node", name)
    environment = {
        **ring.environment,
        "TRAINMASTER_HOME": str(home),
        "TRAINMASTER_TOKEN": made["token"],
    }
    words = ("agent", "--name", name, "--slots", "1", "--profile", str(profile))
    with home.with_suffix(".log").open("wb") as log:
        agent = subprocess.Popen(
            [TRAINMASTER, *words], env=environment, cwd=ROOT, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            agent.terminate()
            agent.wait(timeout=60)


def took_between(ring: Ring, run: str, step: int) -> float:
    """Return the seconds from the end of a step to that of the next, in another attempt."""
    points = ring.json("series", run, "loss", "--points", 100_000)["points"]
    ended = {at_step: at for _, at_step, _, at in points}
    return _seconds(ended[step], ended[step + 1])


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def calibrated(folder: Path, corpus: Path) -> Json:
    """Nodes measure themselves and the layers of the workload; then a run is planned by it."""
    nodes = [
        {"name": "oak", "slots": 1},
        {"name": "elm", "slots": 1, "emulate": {"speed": 0.4}},
    ]
    spec = {**tiny("measured", corpus, steps=30, global_batch=48), "parallel": "auto"}
    spec["params"] = {"layers": 6, "width": 192, "heads": 4, "context": 128}
    with running(folder / "home", nodes=nodes) as ring:
        until_present(ring, len(nodes))
        path = folder / "measured.yaml"
        path.write_text(yaml.safe_dump(spec))
        found = ring.json("calibrate", "--spec", path)
        planned = ring.json("plan", "--spec", path)
        run = ring.submit(spec)
        done = ring.wait_for(run, "succeeded", within_s=200)
        halves = {"parallel": {"replicas": 2, "micro_batch": 4}, "placement": {"nodes": 2}}
        even = ring.submit({**spec, "name": "even", **halves})
        ring.wait_for(even, "succeeded", within_s=200)
        plan = done["plan"]
        return {
            "flops": {each["node"]: flops(each["calibration"]) for each in found},
            "plan": layout(plan),
            "told": layout(planned["plan"]),
            "predicted_s": plan["predicted"]["step_time_s"],
            "measured_s": middle(step_seconds(ring, run), 10, 31),
            "even_s": middle(step_seconds(ring, even), 10, 31),
            "wrong": [],
        }


def kinds(folder: Path, corpus: Path) -> Json:
    """Plans of several kinds, as `parallel: auto` chooses them, run by real ranks."""
    spec = tiny_spec(corpus, steps=6, global_batch=16)
    spec = spec.model_copy(
        update={
            "params": {"layers": 8, "width": 64, "heads": 4, "context": 32},
            "parallel": "auto",
        }
    )
    workload = described(spec)
    told, wrong = [], []
    for name, machines in FLEETS:
        plan = automatic.choose_for(spec, workload, machines).plan
        emulation = played(machines, plan)
        seen = trained(folder / name, spec, plan, emulation=emulation)
        alone = trained(folder / f"{name}-alone", spec, plan_of(spec, micro_batch=plan.micro_batch))
        off = max(
            abs(one - other) / abs(other)
            for one, other in zip(seen.series("loss"), alone.series("loss"), strict=True)
        )
        if off > MOST_OFF:
            wrong.append(f"{name}: losses are {off:.1e} off those of one process")
        told.append(
            {
                "fleet": name,
                "plan": layout(plan.model_dump(mode="json")),
                "predicted_s": plan.predicted.step_time_s,
                "measured_s": statistics.median(seen.series("step_time_s")[2:]),
                "loss_off": off,
            }
        )
    return {"plans": told, "wrong": wrong}


MOST_OFF = 1e-5


def fleet(
    layer_times_s: Sequence[float], slots: int, memory_bytes: float | None, mbps: float | None
) -> list[Machine]:
    """Machines in a row, all joined by links of one kind."""
    names = [f"m{at}" for at in range(len(layer_times_s))]
    link = None if mbps is None else stated_link(10.0, mbps)
    return [
        Machine(
            name,
            slots,
            layer_time_s=each,
            memory_bytes=None if memory_bytes is None else round(memory_bytes),
            links={} if link is None else {other: link for other in names if other != name},
        )
        for name, each in zip(names, layer_times_s, strict=True)
    ]


FLEETS = (
    ("ragged, three speeds", fleet([0.01, 0.02, 0.03], 1, None, None)),
    ("interleaved, little memory", fleet([0.005] * 4, 1, 8e6, None)),
    ("recomputed, less memory", fleet([0.005] * 2, 1, 5e6, None)),
    ("tensor parallel, slow links", fleet([0.005, 0.01], 2, 5e6, 200.0)),
)


def played(machines: Sequence[Machine], plan: Plan) -> dict[int, Emulation]:
    """What each rank of a plan plays; where nobody holds emulated memory to its size."""
    by_name = {machine.name: machine for machine in machines}
    found = {}
    for rank, node in enumerate(nodes_of(plan)):
        machine = by_name[str(node)]
        links = {
            to: Link(latency_ms=1e3 * lat, mbps=None if bw is None else bw * 8 / 1e6)
            for to, (lat, bw) in machine.links.items()
        }
        found[rank] = Emulation(layer_time_s=machine.layer_time_s, links=links)
    return found


def described(spec: RunSpec) -> Any:
    from worker.describe import describe

    return describe(spec.workload, spec.params, spec.data.source)


def flops(calibrated: Json) -> float | None:
    told = (calibrated.get("flops") or {}).get("float32")
    return None if told is None else float(told["value"])


def layout(plan: Json) -> str:
    """Return a plan in a line."""
    words = [f"{plan['schedule']}, micro-batches of {plan['micro_batch']}"]
    words += [f"ZeRO {plan['zero']}"] if plan["zero"] else []
    words += [f"tensor {plan['tensor']}"] if plan["tensor"] > 1 else []
    words += [f"recompute {plan['recompute']}"] if plan["recompute"] != "none" else []
    pipelines = [
        f"{'-'.join(each['nodes']) or 'any'} {'-'.join(map(str, each['layers']))} "
        f"x {each['micro_batches']}"
        for each in plan["pipelines"]
    ]
    return f"{', '.join(words)}: {'; '.join(pipelines)}"


def until_present(ring: Ring, number: int) -> None:
    """Wait for so many nodes: a run is planned for those that are there."""
    until(
        lambda: sum(each["state"] == "present" for each in ring.json("nodes")) == number,
        what=f"{number} nodes to be present",
    )


def step_seconds(ring: Ring, run: str) -> dict[int, float]:
    points = ring.json("series", run, "step_time_s", "--points", 100_000)["points"]
    return {step: float(value) for _, step, value, _ in points if value is not None}


def middle(seconds: dict[int, float], first: int, end: int) -> float:
    """Return the median of the steps from `first` to before `end`."""
    found = [seconds[step] for step in range(first, end) if step in seconds]
    assert found, f"no step was measured from {first} to before {end}"
    return statistics.median(found)


STORIES: dict[str, Story] = {
    "drift": drift,
    "joins": joins,
    "calibrated": calibrated,
    "kinds": kinds,
}


def main() -> int:
    stories = {name: partial(_timed, story) for name, story in STORIES.items()}
    return tell("python -m tests.campaigns.planned", stories, write)


def _timed(story: Story, folder: Path, corpus: Path) -> Json:
    load, began = os.getloadavg()[0], time.monotonic()
    told = story(folder, corpus)
    return told | {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": [load, os.getloadavg()[0]],
        "wall_s": time.monotonic() - began,
    }


def write(name: str, told: Json) -> None:
    """Keep one story, and write the page of all that are kept."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept = {**kept, name: {**told, "conditions": conditions(["torch"])}}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{head}{MARK}\n{''.join(page(kept))}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
