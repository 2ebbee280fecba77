"""`trainmaster doctor`: what would keep an installation from working, each as one line."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Literal

import typer

import trainmaster
from trainmaster.addresses import split
from trainmaster.cli.quantities import bytes_text, instant
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Api, Session, session_of
from trainmaster.errors import TrainmasterError, UserError
from trainmaster.home import Home
from trainmaster.wire import MOST_SKEW_S

LEAST_FREE_BYTES = 1 << 30
PACKAGES = ("torch", "fastapi", "streamlit", "psutil")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `bad` keeps something from working; `warning` may."""

    name: str
    state: Literal["ok", "warning", "bad"]
    message: str


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check this machine and the control plane. Exit status 1 when something is bad."""
    session = session_of(context)
    checks = [*here(session.settings.home), *there(session)]
    if as_json:
        session.output.json([asdict(check) for check in checks])
    else:
        session.output.table(
            ["CHECK", "STATE", "WHAT"],
            [[check.name, check.state, check.message] for check in checks],
            "-",
        )
    if any(check.state == "bad" for check in checks):
        raise typer.Exit(1)


def here(home: Home) -> Iterator[Check]:
    """Look at this machine."""
    python = platform.python_version()
    fits = sys.version_info >= (3, 11)
    yield Check("python", "ok" if fits else "bad", f"{python}" if fits else f"{python} is too old")
    yield Check("trainmaster", "ok", trainmaster.__version__)
    for package in PACKAGES:
        yield _package(package)
    yield _writable(home)
    yield _disk(home)
    yield Check("cores", "ok", f"{len(os.sched_getaffinity(0))}")


def there(session: Session) -> Iterator[Check]:
    """Look at the control plane, as far as it can be reached."""
    url = session.settings.control_url
    before = datetime.now(UTC)
    try:
        nodes = session.api.get("/v1/nodes")
    except TrainmasterError as error:
        yield Check("control", "bad", error.message)
        return
    took_s = (datetime.now(UTC) - before).total_seconds()
    yield Check("control", "ok", f"{url} answers in {took_s * 1000:.0f} ms")
    yield from _each_of(session, split(url))
    yield from _their_version_and_clock(session.api)
    yield from _unreadable(session.api)
    present = [node for node in nodes if node["state"] == "present"]
    yield Check(
        "nodes",
        "ok" if present else "warning",
        f"{len(present)} of {len(nodes)} present" + ("" if present else "; nothing can train"),
    )
    for node in nodes:
        if node["state"] != "present":
            seen = node.get("last_seen_at")
            yield Check(f"node {node['name']}", "warning", f"{node['state']}, last seen {seen}")


def _each_of(session: Session, urls: list[str]) -> Iterator[Check]:
    """Look whether each of several control planes is ready; a caller would find one that is."""
    for url in urls if len(urls) > 1 else ():
        api = session.connect(replace(session.settings, url=url))
        try:
            api.get("/readyz")
            yield Check(f"control {url}", "ok", "ready")
        except TrainmasterError as error:
            yield Check(f"control {url}", "warning", f"{error.message}; the others are asked")
        finally:
            api.close()


def _their_version_and_clock(api: Api) -> Iterator[Check]:
    before = datetime.now(UTC)
    try:
        about = api.get("/v1/about")
    except TrainmasterError:
        return  # not every control plane tells
    after = datetime.now(UTC)
    same = about.get("version") == trainmaster.__version__
    message = f"{about.get('version')}" + ("" if same else f", here {trainmaster.__version__}")
    yield Check("control version", "ok" if same else "warning", message)
    now = instant(about.get("now"))
    if now is not None:
        skew_s = (now - before).total_seconds() - (after - before).total_seconds() / 2
        state: Literal["ok", "warning"] = "ok" if abs(skew_s) <= MOST_SKEW_S else "warning"
        yield Check("clock", state, f"differs from the control plane's by {skew_s:.1f} s")


def _unreadable(api: Api) -> Iterator[Check]:
    try:
        found = api.get("/v1/unreadable")
    except TrainmasterError as error:
        yield Check("stored values", "warning", f"could not be looked at: {error.message}")
        return
    if not found:
        yield Check("stored values", "ok", "all can be read")
    for each in found:
        what = f"run {each['run']}" if each["run"] else each["table"]
        yield Check(
            what,
            "bad",
            f"{each['column']} of {each['table']} ({each['row']}) cannot be read: "
            f"{each['problem']}. Mend: {each['mend']}",
        )


def _package(name: str, version: Callable[[str], str] = metadata.version) -> Check:
    """Read the version that is installed; importing torch would take seconds."""
    try:
        return Check(name, "ok", version(name))
    except metadata.PackageNotFoundError:
        return Check(name, "warning", "is not installed here")


def _writable(home: Home) -> Check:
    if not home.root.exists():
        return Check("home", "ok", f"{home.root} will be created by `trainmaster up`")
    try:
        home.prepare()
    except UserError as error:
        return Check("home", "bad", error.message)
    return Check("home", "ok", str(home.root))


def _disk(home: Home) -> Check:
    root = home.root
    while not root.exists():
        root = root.parent
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    state: Literal["ok", "warning"] = "ok" if free >= LEAST_FREE_BYTES else "warning"
    return Check("disk", state, f"{bytes_text(free)} free at {root}")
