"""The cluster file: several emulated nodes on one machine."""

from __future__ import annotations

from typing import Any

from trainmaster.cluster import Cluster, ClusterNode
from trainmaster.emulation import Link


def profile_of(cluster: Cluster, node: ClusterNode) -> dict[str, Any]:
    """Return the emulation profile that the agent of `node` is started with."""
    return {
        **node.emulate.model_dump(exclude_defaults=True),
        "links": {
            link.to: link.model_dump(include=set(Link.model_fields), exclude_defaults=True)
            for link in cluster.links
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
