"""Channels that can be sent to, and which of them a notice is for."""

from __future__ import annotations

from collections.abc import Sequence

from control.channel_file import ChannelSpec
from control.notify.apprise_channel import AppriseChannel
from trainmaster.errors import UserError
from trainmaster.notification import Channel
from trainmaster.plugins import channel_kinds


def open_channel(spec: ChannelSpec) -> Channel:
    """Return the channel itself; nothing is sent yet.

    Raises:
        UserError: there is no such plug-in, or the address is none.
    """
    if spec.url is not None:
        return AppriseChannel(spec.name, spec.url.get_secret_value())
    kinds = channel_kinds()
    kind = kinds.get(spec.plugin or "")
    if kind is None:
        known = ", ".join(sorted(kinds)) or "none is installed here"
        raise UserError(f"channel {spec.name}: {spec.plugin!r} is no installed plug-in ({known})")
    return kind.open(spec.params)


def targets(
    channels: Sequence[ChannelSpec], named: Sequence[str] | None
) -> tuple[list[ChannelSpec], list[str]]:
    """Return the channels that a notice is for, and the names among those asked for that there are
    none of.
    """
    if named is None:
        return [each for each in channels if each.default], []
    known = {each.name: each for each in channels}
    return [known[name] for name in named if name in known], [
        name for name in named if name not in known
    ]
