"""What a workload runs on, beside its own code: the interpreter, and packages it can import.

Names and versions alone: of a package that was changed in place, the digest knows nothing.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from importlib import metadata

_TOLD = ("torch", "numpy", "trainmaster")


def environment() -> tuple[str, dict[str, str]]:
    """Return one digest of the environment of this process, and what a person wants to know of it:
    interpreter, platform, versions of the packages that most decide what a number comes out as.
    """
    packages = _packages()
    base = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.machine()}",
    }
    told = base | {name: packages[name] for name in _TOLD if name in packages}
    lines = [*base.values(), *(f"{name}=={version}" for name, version in packages.items())]
    return environment_sha256(lines), told | {"packages": str(len(packages))}


def environment_sha256(lines: Iterable[str]) -> str:
    """Digest the lines that describe an environment, whatever their order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _packages() -> dict[str, str]:
    """Return the version of each package that is found first on the path, by its name."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), each.version)
    return found
