"""What every kind of notification channel must do. A third party subclasses `ChannelContract`:

class TestPager(ChannelContract):
kind = pager_kind
good_params = {"key": "of-a-test"}
bad_params = {"key": ""}

def received(self): ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from trainmaster.errors import UserError
from trainmaster.notification import ChannelKind, Notification

HOSTILE = "{{ 7*7 }} ${HOME} <script>alert(1)</script> `id` 备注 \u202e"


class ChannelContract:
    """To be subclassed with the kind of channel, params that it can use and params that it cannot,
    and how to see what has arrived.
    """

    kind: ClassVar[ChannelKind]
    good_params: ClassVar[Mapping[str, Any]] = {}
    bad_params: ClassVar[Mapping[str, Any]] = {}

    def received(self) -> Sequence[str]:
        """Return the text of what has arrived, title and body together, oldest first."""
        raise NotImplementedError

    def test_what_is_sent_arrives_as_it_is(self) -> None:
        before = len(self.received())
        channel = self.kind.open(self.good_params)
        channel.send(Notification(f"title {HOSTILE}", f"body\n{HOSTILE}", "critical", "ra1"))
        [told] = self.received()[before:]
        assert told.count(HOSTILE) == 2, "nothing in a text is evaluated or lost"

    def test_opening_sends_nothing(self) -> None:
        before = len(self.received())
        self.kind.open(self.good_params)
        assert len(self.received()) == before

    def test_the_same_may_be_sent_twice_and_each_severity_is_known(self) -> None:
        channel = self.kind.open(self.good_params)
        for severity in ("info", "warning", "critical", "critical"):
            channel.send(Notification("title", "body", severity))

    def test_params_that_it_cannot_use_are_refused_when_it_is_opened(self) -> None:
        with pytest.raises(UserError) as refused:
            self.kind.open(self.bad_params)
        assert str(refused.value).strip(), "the refusal says what to mend"
