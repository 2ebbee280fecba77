"""The processes of an installation: how each is started, and with what environment.

`up` starts them as children; `trainmaster control`, `agent` and `dashboard` become them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.cli.settings import address
from trainmaster.cli.supervisor import Part
from trainmaster.errors import UserError
from trainmaster.home import Home, write_atomically
from trainmaster.ids import node_id_of

if TYPE_CHECKING:
    from trainmaster.cluster import Cluster

CHECKOUT = Path(__file__).parents[2]
"""Where `control`, `dashboard`, `migrations` and `examples` lie beside this package."""


@dataclass(frozen=True, slots=True)
class Node:
    """What an agent is started with.

    Attributes:
        slots: None leaves it to the agent, which looks at the machine.
        profile: labels and emulation, as `worker.agent` reads them from a file.
    """

    name: str
    slots: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    emulation: Mapping[str, Any] = field(default_factory=dict)


def single_node(home: Home, slots: int | None) -> list[Node]:
    """Return the one node of an installation without a cluster file.

    It keeps its name when the machine's changes, as a container's does, or its past were lost.
    """
    before, clustered = remembered_nodes(home)
    name = before[0].name if before and not clustered else node_id_of(socket.gethostname())
    return [Node(name, slots)]


def cluster_nodes(cluster: Cluster) -> list[Node]:
    """Return the nodes of a cluster file."""
    from trainmaster.cli.cluster import profile_of

    return [
        Node(node.name, node.slots, node.labels, profile_of(cluster, node))
        for node in cluster.nodes
    ]


def remember_nodes(home: Home, nodes: list[Node], *, clustered: bool) -> None:
    """Keep the nodes, so that `trainmaster agent` can start one of them as `up` did."""
    text = json.dumps({"clustered": clustered, "nodes": [asdict(node) for node in nodes]})
    write_atomically(home.root / "nodes.json", text.encode())


def remembered_nodes(home: Home) -> tuple[list[Node], bool]:
    """Return the nodes that `up` started last on `home`, and whether from a cluster file."""
    try:
        kept = json.loads((home.root / "nodes.json").read_bytes())
        return [Node(**node) for node in kept["nodes"]], bool(kept["clustered"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], False


def agent_name(node: str, *, clustered: bool) -> str:
    """Return the name under which `ps` shows the agent of `node`."""
    return f"agent:{node}" if clustered else "agent"


def nest_name(node: str, *, clustered: bool) -> str:
    """Return the name under which `ps` shows the nest of `node`'s agent."""
    return f"nest:{node}" if clustered else "nest"


def token_name(node: str) -> str:
    """Return the name under which the token of a node's agent is stored."""
    return f"agent-{node}"


def control_part(home: Home, port: int, environment: Mapping[str, str]) -> Part:
    """Return the control plane.

    Raises:
        UserError: this installation has none.
    """
    require_application("control", "reconciler.py")
    return Part(
        name="control",
        command=[sys.executable, "-m", "control", "serve"],
        environment={
            **_without_token(environment),
            "TRAINMASTER_HOME": str(home.root),
            "TRAINMASTER_PORT": str(port),
        },
        folder=CHECKOUT,
        address=address(port),
        last_to_stop=True,
    )


def dashboard_part(home: Home, port: int, url: str, environment: Mapping[str, str]) -> Part:
    """Return the dashboard of the control plane at `url`.

    Raises:
        UserError: this installation has none.
    """
    require_application("dashboard", "app.py")
    return Part(
        name="dashboard",
        command=[sys.executable, "-m", "dashboard"],
        environment={
            **_without_token(environment),
            "TRAINMASTER_HOME": str(home.root),
            "TRAINMASTER_URL": url,
            "TRAINMASTER_DASHBOARD_PORT": str(port),
        },
        folder=CHECKOUT,
        address=address(port),
    )


def agent_part(
    home: Home, node: Node, url: str, environment: Mapping[str, str], *, clustered: bool
) -> Part:
    """Return the agent of `node`; its token and profile are files in `home`."""
    name = agent_name(node.name, clustered=clustered)
    return Part(
        name=name,
        command=[sys.executable, "-m", "worker.agent"],
        environment={
            **_without_token(environment),
            **node_environment(home, node),
            "PYTHONPATH": _import_path(environment),
            "PYTHONSAFEPATH": "1",
            "TRAINMASTER_HOME": str(home.root),
            "TRAINMASTER_URL": url,
            "TRAINMASTER_TOKEN_FILE": str(home.root / "tokens" / token_name(node.name)),
            "TRAINMASTER_PROCESS_NAME": name,
        },
        # A user's workload and corpus are named relative to where `up` was called.
        folder=Path.cwd(),
    )


def node_environment(home: Home, node: Node) -> dict[str, str]:
    """Return the variables that tell an agent which node it is, with its profile written down."""
    environment = {"TRAINMASTER_NODE_NAME": node.name}
    if node.slots is not None:
        environment["TRAINMASTER_SLOTS"] = str(node.slots)
    if node.labels or node.emulation:
        profile = home.node(node.name) / "profile.json"
        profile.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"labels": dict(node.labels), "emulate": dict(node.emulation)})
        write_atomically(profile, text.encode())
        environment["TRAINMASTER_PROFILE"] = str(profile)
    return environment


def require_application(package: str, marker: str) -> None:
    """See that `package` is this project's own and lies beside `trainmaster`.

    Raises:
        UserError: it does not; the message names what took its place.
    """
    if (CHECKOUT / package / marker).is_file():
        return
    found = importlib.util.find_spec(package)
    if found is None:
        raise UserError(
            f"this installation has no {package!r}: the wheel holds the worker and the command "
            f"line alone; run this from a checkout or the image"
        )
    where = found.origin or ", ".join(found.submodule_search_locations or [])
    raise UserError(
        f"the import name {package!r} belongs to another project here ({where}; python-control on "
        f"PyPI uses it): run this from a checkout of trainmaster, in an environment without it"
    )


def become(part: Part) -> None:
    """Turn this process into `part`; returns only by raising OSError."""
    os.chdir(part.folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(part.command[0], list(part.command), dict(part.environment))


def _without_token(environment: Mapping[str, str]) -> dict[str, str]:
    """The person's token is not the parts'; nor do they inherit settings meant for another part."""
    private = {"TRAINMASTER_TOKEN", "TRAINMASTER_TOKEN_FILE"}
    return {key: value for key, value in environment.items() if key not in private}


def _import_path(environment: Mapping[str, str]) -> str:
    """The checkout before the user's folder, so that none of theirs takes the name `worker`."""
    kept = environment.get("PYTHONPATH")
    return os.pathsep.join([str(CHECKOUT), str(Path.cwd()), *([kept] if kept else [])])
