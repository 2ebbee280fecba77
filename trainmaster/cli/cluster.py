"""The cluster file: several emulated nodes on one machine."""

from __future__ import annotations

from typing import Annotated, Any, Self

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

    nodes: Annotated[list[ClusterNode], Field(min_length=1, max_length=256)]
    links: list[ClusterLink] = []

    @model_validator(mode="after")
    def _names_once_and_known(self) -> Self:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"more than one node is named {', '.join(twice)}")
        pairs = [(link.from_, link.to) for link in self.links]
        for pair in pairs:
            unknown = [name for name in pair if name not in names]
            if unknown:
                raise ValueError(f"a link names {', '.join(unknown)}, which is not among the nodes")
            if pair[0] == pair[1]:
                raise ValueError(f"a link leads from {pair[0]} to itself")
            if pairs.count(pair) > 1:
                raise ValueError(f"more than one link leads from {pair[0]} to {pair[1]}")
        return self

    def profile(self, node: ClusterNode) -> dict[str, Any]:
        """Return the emulation profile that the agent of `node` is started with."""
        return {
            **node.emulate.model_dump(exclude_defaults=True),
            "links": {
                link.to: link.model_dump(include=set(Link.model_fields), exclude_defaults=True)
                for link in self.links
                if link.from_ == node.name
            },
        }


def read_cluster(path: str) -> Cluster:
    """Return the cluster in a file.

    Raises:
        UserError: the file cannot be read.
        DocumentError: it is no cluster file; all problems, each with its line.
    """
    from trainmaster import document
    from trainmaster.cli.documents import problems_in, read_document

    read = read_document(path)
    with problems_in(path, read):
        return document.validate(Cluster, read)
