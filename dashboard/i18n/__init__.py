"""The words of the dashboard: one catalogue per language, with equal keys.

A text is asked for by its key; values are put in as they are and never read as patterns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

LANGUAGES: Mapping[str, str] = {"en": "English", "zh-CN": "简体中文"}
DEFAULT_LANGUAGE = "en"


@dataclass(frozen=True, slots=True)
class Translator:
    """Says things in one language. A key that no catalogue has comes out as itself."""

    language: str
    texts: Mapping[str, str]

    def __call__(self, key: str, **values: object) -> str:
        text = self.texts.get(key, key)
        return text.format(**values) if values else text

    def word(self, group: str, name: str) -> str:
        """Say a word of an open set, such as the kind of an event; an unknown one as it is."""
        return self.texts.get(f"{group}.{name}", name)


def best_language(asked: str) -> str:
    """Return the first language of a header like Accept-Language that we speak, else English."""
    for part in asked.split(","):
        tag = part.split(";")[0].strip().lower()
        for language in LANGUAGES:
            if tag == language.lower() or tag.split("-")[0] == language.split("-")[0].lower():
                return language
    return DEFAULT_LANGUAGE


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the texts of `language` by their keys."""
    text = (files("dashboard.i18n") / f"{language}.json").read_text(encoding="utf-8")
    texts: dict[str, str] = json.loads(text)
    return texts


@cache
def translator(language: str) -> Translator:
    """Return the translator for one of `LANGUAGES`."""
    return Translator(language, catalogue(language))
