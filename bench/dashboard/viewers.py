"""Viewers without a browser: they speak the framework's own protocol, ask for a page, and ask again
for its live parts as often as these want, as a browser does; and they look at what the page has the
browser look at by itself. Like a browser they keep what may be kept, and say so, so that it is not
sent again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx
import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.typing import Subprotocol

WAIT_S = 60.0


@dataclass(slots=True)
class Seen:
    """What a viewer has asked for and got."""

    ticks: int = 0
    answers: int = 0
    received_bytes: int = 0
    fragments: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Looks:
    """What the browser looks at by itself while it shows a page, and how often."""

    address: str
    every_s: float


async def _look_on(url: str, cookie: str, looks: Looks, seen: Seen) -> None:
    version = ""
    async with httpx.AsyncClient(
        base_url=url, headers={"Cookie": cookie}, timeout=WAIT_S
    ) as browser:
        while True:
            seen.ticks += 1
            told = await browser.get(f"{looks.address}&version={version}")
            seen.received_bytes += len(told.content)
            seen.answers += told.is_success
            version = told.json().get("version", "")
            await asyncio.sleep(looks.every_s)


async def look(url: str, cookie: str, page: str, query: str, looks: Looks, seconds: float) -> Seen:
    """Look at a page for `seconds`, and return what was seen."""
    seen = Seen()
    address = url.replace("http", "ws", 1) + "/_stcore/stream"
    headers = {"Cookie": cookie, "Origin": url}
    async with websockets.connect(
        address, additional_headers=headers, subprotocols=[Subprotocol("streamlit")], max_size=None
    ) as socket:
        first = BackMsg()
        first.rerun_script.query_string = query
        first.rerun_script.page_name = page
        await socket.send(first.SerializeToString())
        by_itself = asyncio.create_task(_look_on(url, cookie, looks, seen))
        asking: dict[str, asyncio.Task[None]] = {}
        kept: set[str] = set()

        async def ask(fragment: str, every_s: float) -> None:
            while True:
                await asyncio.sleep(every_s)
                again = BackMsg()
                again.rerun_script.query_string = query
                again.rerun_script.page_name = page
                again.rerun_script.fragment_id = fragment
                again.rerun_script.cached_message_hashes.extend(kept)
                await socket.send(again.SerializeToString())
                seen.ticks += 1

        try:
            async with asyncio.timeout(seconds):
                async for told in socket:
                    seen.received_bytes += len(told)
                    message = ForwardMsg()
                    message.ParseFromString(told)
                    if message.metadata.cacheable:
                        kept.add(message.hash)
                    kind = message.WhichOneof("type")
                    if kind == "auto_rerun":
                        wanted = message.auto_rerun
                        seen.fragments[wanted.fragment_id] = wanted.interval
                        if wanted.fragment_id not in asking:
                            asking[wanted.fragment_id] = asyncio.create_task(
                                ask(wanted.fragment_id, wanted.interval)
                            )
                    seen.answers += kind == "script_finished"
        except TimeoutError:
            pass
        finally:
            for task in (by_itself, *asking.values()):
                task.cancel()
    return seen


async def look_all(
    url: str, cookie: str, page: str, query: str, looks: Looks, *, viewers: int, seconds: float
) -> list[Seen]:
    """Let many look at once."""
    return await asyncio.gather(
        *(look(url, cookie, page, query, looks, seconds) for _ in range(viewers))
    )
