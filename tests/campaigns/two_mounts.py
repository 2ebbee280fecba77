"""`python -m tests.campaigns.two_mounts`: one run on two agents that see a store through mounts of
their own. Where both mounts show one folder it trains, dies and goes on; where one shows another
folder it is refused, and the sentence names the node. Needs the right to mount.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.scenarios.ring import ROOT, TRAINMASTER, Ring, running, tiny, until

MOUNTED = 'mount --make-rprivate / && mount --bind "$1" "$2" && shift 2 && exec "$@"'


@contextmanager
def agent(ring: Ring, node: str, shown: Path, at: Path) -> Iterator[None]:
    """An agent in a mount namespace of its own, in which `at` shows the folder `shown`."""
    token = ring.json("token", "create", "--role", "agent", "--node", node)["token"]
    command = ["unshare", "--mount", "sh", "-ec", MOUNTED, "sh", shown, at]
    environment = {**ring.environment, "TRAINMASTER_TOKEN": token, "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [*map(str, command), str(TRAINMASTER), "agent", "--name", node, "--slots", "2"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def spec(name: str, corpus: Path, store: Path) -> dict[str, Any]:
    made = tiny(name, corpus, steps=40)
    made["placement"] = {"nodes": 2, "labels": {}}
    made["checkpoint"] |= {"store": store.as_uri(), "memory": "off"}
    return made


def present(ring: Ring, *nodes: str) -> bool:
    seen = {each["id"]: each["state"] for each in ring.json("nodes")}
    return all(seen.get(node) == "present" for node in nodes)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="two-mounts-") as made:
        here = Path(made)
        corpus = here / "corpus.txt"
        corpus.write_text("the slow node waits for its peer and says why. " * 4000)
        for name in ("shared", "elsewhere", "store"):
            (here / name).mkdir()
        with running(here / "home") as ring:
            ring.call("cordon", "oak")
            with agent(ring, "elm", here / "shared", here / "store"):
                with agent(ring, "fir", here / "shared", here / "store"):
                    until(lambda: present(ring, "elm", "fir"), what="both agents")
                    run = ring.submit(spec("same", corpus, here / "store"))
                    ring.wait_for_step(run, 15)
                    os.kill(int(ring.show(run)["ranks"][0]["pid"]), 9)
                    done = ring.wait_for(run, "succeeded")
                    print(
                        "two mounts of one folder: succeeded, resumed from step",
                        done["attempts"][-1]["resumed_from_step"],
                        "on",
                        sorted({rank["node"] for rank in done["ranks"]}),
                    )
                    kept = sorted(path.name for path in (here / "shared" / run).iterdir())
                    print("in the folder behind both:", ", ".join(kept))
                with agent(ring, "yew", here / "elsewhere", here / "store"):
                    until(lambda: present(ring, "elm", "yew"), what="both agents")
                    ring.call("cordon", "fir")
                    run = ring.submit(spec("apart", corpus, here / "store"))
                    failed = ring.wait_for(run, "failed")
                    print("two folders under one path: failed:", failed["because"])
                    left = [str(path) for path in (here / "elsewhere").rglob("g*-step*")]
                    assert not left, left
                    assert "does not see" in failed["because"]
    return 0


if __name__ == "__main__":
    sys.exit(main())
