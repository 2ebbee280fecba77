"""Who may do what: roles, and ONE table that names the least role of every route. Pure.

viewer < operator < admin; an agent's token may do nothing but speak for its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trainmaster.errors import ForbiddenError, UnauthenticatedError

OPEN, ANY, AGENT, VIEWER, OPERATOR, ADMIN = "open", "any", "agent", "viewer", "operator", "admin"
LINK = "link"
"""The role of a link token; nobody creates one by hand."""
ROLES = (VIEWER, OPERATOR, ADMIN, AGENT)
_RANK = {VIEWER: 1, OPERATOR: 2, ADMIN: 3}

LEAST_ROLE: Mapping[tuple[str, str], str] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("POST", "/v1/logins"): OPEN,
    ("GET", "/v1/about"): ANY,
    ("GET", "/v1/logins/current"): ANY,
    ("DELETE", "/v1/logins/current"): ANY,
    ("POST", "/v1/nodes/{node}/sync"): AGENT,
    ("POST", "/v1/nodes/{node}/link-token"): AGENT,
    ("GET", "/metrics"): VIEWER,
    ("GET", "/openapi.json"): VIEWER,
    ("POST", "/v1/login-codes"): VIEWER,
    ("GET", "/v1/runs"): VIEWER,
    ("POST", "/v1/runs"): OPERATOR,
    ("POST", "/v1/imports"): OPERATOR,
    ("GET", "/v1/runs/{run}"): VIEWER,
    ("PUT", "/v1/runs/{run}/tags"): OPERATOR,
    ("POST", "/v1/runs/{run}/archive"): OPERATOR,
    ("POST", "/v1/runs/{run}/unarchive"): OPERATOR,
    ("GET", "/v1/runs/{run}/ranks"): VIEWER,
    ("GET", "/v1/runs/{run}/kinds"): VIEWER,
    ("GET", "/v1/runs/{run}/goodput"): VIEWER,
    ("GET", "/v1/runs/{run}/events"): VIEWER,
    ("GET", "/v1/runs/{run}/series"): VIEWER,
    ("POST", "/v1/runs/{run}/series"): VIEWER,
    ("POST", "/v1/runs/{run}/look"): VIEWER,
    ("GET", "/v1/runs/{run}/timelines"): VIEWER,
    ("GET", "/v1/runs/{run}/timelines/{step}"): VIEWER,
    ("GET", "/v1/runs/{run}/checkpoints"): VIEWER,
    ("GET", "/v1/runs/{run}/retention"): VIEWER,
    ("GET", "/v1/runs/{run}/alerts"): VIEWER,
    ("GET", "/v1/runs/{run}/incidents"): VIEWER,
    ("GET", "/v1/runs/{run}/requests"): VIEWER,
    ("POST", "/v1/runs/{run}/requests"): OPERATOR,
    ("POST", "/v1/runs/{run}/drills"): OPERATOR,
    ("POST", "/v1/runs/{run}/restore-preview"): VIEWER,
    ("GET", "/v1/runs/{run}/logs"): VIEWER,
    ("GET", "/v1/runs/{run}/stacks"): VIEWER,
    ("GET", "/v1/runs/{run}/recoveries"): VIEWER,
    ("GET", "/v1/goodput"): VIEWER,
    ("GET", "/v1/requests/{request}"): VIEWER,
    ("GET", "/v1/checkpoints/{checkpoint}"): VIEWER,
    ("POST", "/v1/checkpoints/{checkpoint}/pin"): OPERATOR,
    ("POST", "/v1/checkpoints/{checkpoint}/unpin"): OPERATOR,
    ("POST", "/v1/checkpoints/{checkpoint}/verify"): OPERATOR,
    ("GET", "/v1/checkpoints/{checkpoint}/compare/{other}"): VIEWER,
    ("POST", "/v1/checkpoints/{checkpoint}/compare/{other}"): OPERATOR,
    ("POST", "/v1/backtest"): VIEWER,
    ("POST", "/v1/rules/test"): VIEWER,
    ("GET", "/v1/rules"): VIEWER,
    ("POST", "/v1/rules"): OPERATOR,
    ("GET", "/v1/rules/{name}"): VIEWER,
    ("PUT", "/v1/rules/{name}"): OPERATOR,
    ("PATCH", "/v1/rules/{name}"): OPERATOR,
    ("DELETE", "/v1/rules/{name}"): OPERATOR,
    ("GET", "/v1/rules/{name}/history"): VIEWER,
    ("POST", "/v1/rules/{name}/enable"): OPERATOR,
    ("POST", "/v1/rules/{name}/disable"): OPERATOR,
    ("GET", "/v1/alerts"): VIEWER,
    ("GET", "/v1/incidents"): VIEWER,
    ("GET", "/v1/incidents/{incident}"): VIEWER,
    ("POST", "/v1/incidents/{incident}/approve"): OPERATOR,
    ("POST", "/v1/incidents/{incident}/dismiss"): OPERATOR,
    ("GET", "/v1/channels"): VIEWER,
    ("POST", "/v1/channels/{name}/test"): OPERATOR,
    ("GET", "/v1/silences"): VIEWER,
    ("POST", "/v1/silences"): OPERATOR,
    ("DELETE", "/v1/silences/{silence}"): OPERATOR,
    ("POST", "/v1/alertmanager"): OPERATOR,
    ("GET", "/v1/metrics"): VIEWER,
    ("GET", "/v1/nodes"): VIEWER,
    ("GET", "/v1/nodes/{node}"): VIEWER,
    ("POST", "/v1/nodes/{node}/cordon"): OPERATOR,
    ("POST", "/v1/nodes/{node}/uncordon"): OPERATOR,
    ("POST", "/v1/nodes/{node}/calibrate"): OPERATOR,
    ("POST", "/v1/plan"): VIEWER,
    ("GET", "/v1/prometheus/targets"): VIEWER,
    ("GET", "/v1/prometheus/rules"): VIEWER,
    ("GET", "/v1/unreadable"): VIEWER,
    ("GET", "/v1/tokens"): ADMIN,
    ("POST", "/v1/tokens"): ADMIN,
    ("DELETE", "/v1/tokens/{token}"): ADMIN,
    ("GET", "/v1/audit"): VIEWER,
}
"""(method, path) -> least role. A route that is not in it cannot be added to the application."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token it is."""

    token: str
    name: str
    role: str
    node: str | None = None
    expires_at: datetime | None = None

    @property
    def actor(self) -> str:
        """Who did it, for history and audit log."""
        return self.name


def admit(caller: Caller | None, method: str, path: str, *, node: str | None = None) -> None:
    """Return if `caller` may use the route.

    Args:
        node: the node that the request speaks for, where the path names one.

    Raises:
        UnauthenticatedError: a token is needed.
        ForbiddenError: the token's role is not enough, or it is another node's.
    """
    least = LEAST_ROLE[(method, path)]
    if least == OPEN:
        return
    if caller is None:
        raise UnauthenticatedError("a token is needed: send it as `Authorization: Bearer TOKEN`")
    if least == ANY or caller.role == ADMIN:
        return
    if caller.role == AGENT:
        if least == AGENT and caller.node == node:
            return
        told = f"speak for node {node}" if least == AGENT else "read or steer"
        raise ForbiddenError(
            f"this token is bound to the agent of node {caller.node} and cannot {told}"
        )
    if least == AGENT or _RANK.get(caller.role, 0) < _RANK[least]:
        raise ForbiddenError(f"this needs the role {least}; the token's role is {caller.role}")
