"""What is sought by words. Pure."""

from __future__ import annotations


def holds(text: str, sought: str) -> bool:
    """Whether every word that is sought stands somewhere in `text`, in whatever case."""
    whole = text.casefold()
    return all(word in whole for word in sought.casefold().split())
