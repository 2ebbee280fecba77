"""YAML documents with positions: text -> plain values -> models, with every problem at once, each
with its path and line.

YAML's own loader loses lines, takes a key twice in silence, reads `1e-4` as text, and expands
aliases without limit; this one does none of these. Nothing is constructed but plain values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from trainmaster.errors import Problem, SpecError

MAX_CHARS = 1 << 20
MAX_VALUES = 50_000
MAX_DEPTH = 60
MAX_BITS = 10_000
"""Of a whole number: Python writes none of many more as text."""
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""NUL and halves of surrogate pairs: no database keeps them, and JSON on the wire cannot carry the
latter.
"""

_INSTANCE = "dictionary or object to extract fields from"
"""What pydantic calls a mapping where a model is wanted."""

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-4` as the number that YAML 1.2 says it is."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


@dataclass
class Document:
    """Plain values, and the line on which each stands."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Return the line of `path`, or of the nearest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def path_text(path: Sequence[str | int]) -> str:
    """Return `train.skip[0]` for ("train", "skip", 0)."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read(text: str) -> Document:
    """Parse YAML (or JSON) text.

    Raises:
        SpecError: not YAML, a key twice, or more values than a document of ours can need.
    """
    if len(text) > MAX_CHARS:
        raise SpecError([Problem("", f"has {len(text)} characters; at most {MAX_CHARS} are read")])
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        reader = _Reader(loader)
        document = Document(None, reader.lines)
        document.value = None if root is None else reader.build(root, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = getattr(error, "problem", None) or str(error)
        raise SpecError(
            [Problem("", f"is not YAML: {message}", mark.line + 1 if mark else None)]
        ) from error
    except RecursionError as error:
        raise SpecError([Problem("", "is nested too deeply")]) from error
    except ValueError as error:
        raise SpecError([Problem("", f"holds a value that cannot be read: {error}")]) from error
    finally:
        if loader is not None:
            loader.dispose()
    if reader.problems:
        raise SpecError(reader.problems)
    return document


class _Reader:
    def __init__(self, loader: _Loader) -> None:
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []
        self.num_values = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines[path] = line
        self.num_values += 1
        if self.num_values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise SpecError(
                [Problem("", f"holds more than {MAX_VALUES} values or {MAX_DEPTH} levels", line)]
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        value = self._scalar(node)
        if value is not None and not isinstance(value, str | int | float):
            self._refuse(path, f"must be plain text or a number, not {node.tag}", line)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            self._refuse(path, f"is a whole number of more than {MAX_BITS} bits", line)
        elif isinstance(value, str) and UNSTORABLE.search(value):
            self._refuse(
                path, "contains NUL or half of a surrogate pair, which no database keeps", line
            )
        return value

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self.loader.construct_object(node)
        except (LookupError, AttributeError) as error:  # of a tag that the text does not fit
            raise ValueError(f"{node.value!r} is not {node.tag}") from error

    def _refuse(self, path: Path, why: str, line: int) -> None:
        self.problems.append(Problem(path_text(path), why, line))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or UNSTORABLE.search(key):
                self._refuse(path, "a key must be plain text", line)
                continue
            here = (*path, key)
            if key in built:
                twice = f"stands twice, on lines {self.lines[here]} and {line}; keep one"
                self._refuse(here, twice, line)
                continue
            built[key] = self.build(value_node, here)
            self.lines[here] = line
        return built


def parse(model: type[Model], text: str) -> Model:
    """Read `text` as a `model`.

    Raises:
        SpecError: all problems, each with its path and line.
    """
    return validate(model, read(text))


def validate(model: type[Model], document: Document) -> Model:
    """Return `document` as a `model`, or raise SpecError with all its problems."""
    if not isinstance(document.value, Mapping):
        raise SpecError([Problem("", "must be a mapping of keys to values", document.line(()))])
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise SpecError(problems_of(error, model, document)) from error


def with_lines(error: SpecError, document: Document) -> SpecError:
    """Return `error` with the lines of `document` where a problem's path stands in it."""
    paths = {path_text(path): line for path, line in document.lines.items()}
    located = []
    for problem in error.problems:
        line, where = problem.line, problem.path
        while line is None and where:
            line = paths.get(where)
            where = where.rpartition(".")[0]
        located.append(Problem(problem.path, problem.message, line))
    return SpecError(located)


def problems_of(
    error: ValidationError, model: type[BaseModel], document: Document
) -> list[Problem]:
    """Translate pydantic's errors into problems, alternatives of one value joined into one
    problem.
    """
    found = _told_of(error.errors(include_url=False), document.value, model)
    return [Problem(path_text(path), text, document.line(path)) for path, text in found.items()]


def body_problems(errors: Sequence[Any], body: Any) -> list[Problem]:
    """Translate what pydantic says of a message that came as JSON, in the same words."""
    return [Problem(path_text(path), text) for path, text in _told_of(errors, body, None).items()]


def _told_of(errors: Sequence[Any], value: Any, model: type[BaseModel] | None) -> dict[Path, str]:
    messages: dict[Path, list[str]] = {}
    found = [(_real_path(each, value), each) for each in errors]
    for path, each in found:
        if _is_no_word(each) and any(
            other[: len(path)] == path and not _is_no_word(inner) for other, inner in found
        ):
            continue  # another branch of the same union says what is wrong inside
        message = _message(each, model, path)
        if message not in messages.setdefault(path, []):
            messages[path].append(message)
    return {path: "; or ".join(alternatives) for path, alternatives in messages.items()}


def _is_no_word(error: Any) -> bool:
    """Return whether a mapping or a list stands where one of a few words may."""
    return error["type"] == "literal_error" and isinstance(error["input"], Mapping | list)


def _real_path(error: Any, value: Any) -> Path:
    """Drop the parts of pydantic's location that name a branch of a union rather than a key, and
    add the key whose value should have named one.
    """
    path: list[str | int] = []
    loc: Sequence[str | int] = error["loc"]
    for position, part in enumerate(loc):
        is_key = isinstance(value, Mapping) and isinstance(part, str)
        is_index = isinstance(value, list) and isinstance(part, int)
        if (is_key and part in value) or (is_index and int(part) < len(value)):
            value = value[part]
        elif not (is_key and position == len(loc) - 1 and error["type"] == "missing"):
            continue
        path.append(part)
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _message(error: Any, model: type[BaseModel] | None, path: Path) -> str:
    kind, text = error["type"], str(error["msg"])
    if kind in {"missing", "union_tag_not_found"}:
        return "is needed"
    if kind == "union_tag_invalid":
        return _no_branch(error["ctx"])
    if kind == "extra_forbidden":
        known = [] if model is None else _keys_at(model, path[:-1])
        near = difflib.get_close_matches(str(path[-1])[:100], known, n=1)
        return f"is not a known key; did you mean {near[0]!r}?" if near else "is not a known key"
    given = error.get("input")
    text = text.removeprefix("Value error, ")
    text = text.replace("Input should be", "should be").replace(_INSTANCE, "mapping")
    if isinstance(given, Mapping | list):
        is_another_kind = kind.endswith("_type") or kind == "literal_error"
        what = "a list" if isinstance(given, list) else "a mapping"
        return f"{text}, not {what}" if is_another_kind else text
    if kind.startswith("value_error"):
        return text
    shown = repr(given)
    return f"{text}, not {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _no_branch(context: Mapping[str, Any]) -> str:
    """Return what to write instead of a word that names no branch of a union."""
    words = [each.strip(" '") for each in str(context["expected_tags"]).split(",")]
    near = difflib.get_close_matches(str(context["tag"]), words, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"should be one of {', '.join(words)}, not {str(context['tag'])[:60]!r}{hint}"


def _keys_at(model: type[BaseModel], path: Path) -> list[str]:
    models: list[type[BaseModel]] = [model]
    for part in path:
        if isinstance(part, str):
            fields = (each.model_fields.get(part) for each in models)
            models = [
                found
                for info in fields
                if info is not None
                for found in _models_in(info.annotation)
            ]
    return [name for each in models for name in each.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def set_path(value: dict[str, Any], dotted: str, new: Any) -> None:
    """Set `train.steps`, `when.of.0.above` and the like in place, making mappings on the way; for
    `--set key.path=value`.

    Raises:
        SpecError: the path runs through something that is neither a mapping nor a list, or beyond
            a list.
    """
    *parents, last = dotted.split(".")
    here: Any = value
    for position, part in enumerate(parents):
        place = _place(here, part, dotted)
        child = here.setdefault(place, {}) if isinstance(here, dict) else here[place]
        if not isinstance(child, dict | list):
            where = ".".join(parents[: position + 1])
            raise SpecError(
                [Problem(dotted, f"cannot be set: {where} is {child!r}, not a mapping")]
            )
        here = child
    here[_place(here, last, dotted)] = new


def _place(here: dict[str, Any] | list[Any], part: str, dotted: str) -> Any:
    if isinstance(here, dict):
        return part
    if not part.isdecimal() or int(part) >= len(here):
        raise SpecError(
            [Problem(dotted, f"cannot be set: {part!r} is none of the {len(here)} items there")]
        )
    return int(part)
