"""What a cluster file says: nodes, emulated where it says so, and the links between them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from trainmaster.emulation import Device, Link
from trainmaster.ids import node_id_problem
from trainmaster.plan import Strict


class ClusterNode(Strict):
    """One node: an agent of its own with `slots` places for ranks."""

    name: str
    slots: Annotated[int, Field(ge=1, le=1024)] = 1
    labels: dict[str, str] = {}
    emulate: Device = Device()

    @field_validator("name")
    @classmethod
    def _is_an_id(cls, name: str) -> str:
        problem = node_id_problem(name)
        if problem:
            raise ValueError(problem)
        return name


class ClusterLink(Link):
    """What a message from one node to another costs, in this direction."""

    from_: Annotated[str, Field(alias="from")]
    to: str


class Cluster(Strict):
    """A cluster file."""

    nodes: Annotated[list[ClusterNode], Field(min_length=1, max_length=1024)]
    links: Annotated[list[ClusterLink], Field(max_length=1024 * 1023)] = []

    @model_validator(mode="after")
    def _names_once_and_known(self) -> Self:
        names = Counter(node.name for node in self.nodes)
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise ValueError(f"more than one node is named {', '.join(twice)}")
        pairs: set[tuple[str, str]] = set()
        for link in self.links:
            pair = link.from_, link.to
            unknown = [name for name in pair if name not in names]
            if unknown:
                raise ValueError(f"a link names {', '.join(unknown)}, which is not among the nodes")
            if pair[0] == pair[1]:
                raise ValueError(f"a link leads from {pair[0]} to itself")
            if pair in pairs:
                raise ValueError(f"more than one link leads from {pair[0]} to {pair[1]}")
            pairs.add(pair)
        return self
