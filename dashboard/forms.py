"""Forms over documents: which values of a model a form can show, and documents with one changed.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from trainmaster.document import set_path

Kind = Literal["flag", "choice", "integer", "number", "text"]
MOST_ON_A_LINE = 80
_KINDS: Mapping[type, Kind] = {bool: "flag", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True, slots=True)
class Field:
    """A value that a form can show.

    Attributes:
        name: its key in the document.
        choices: of a choice, what may stand there.
        optional: whether the document may go without it.
        default: what holds where the document says nothing; None where it must say something.
    """

    name: str
    kind: Kind
    choices: tuple[Any, ...] = ()
    optional: bool = False
    default: Any = None


def fields_of(model: type[BaseModel], *names: str) -> list[Field]:
    """Return the fields of `model` that a form can show, or those of them that are named, in that
    order; what is nested or a list is left to text.
    """
    told = {info.alias or name: info for name, info in model.model_fields.items()}
    found = [_field(name, told[name]) for name in names or told]
    return [field for field in found if field is not None]


def _field(name: str, info: FieldInfo) -> Field | None:
    kinds = _plain(info.annotation)
    needed = info.default is PydanticUndefined
    default = None if needed else info.default
    optional = NoneType in kinds or not needed
    bare = [each for each in kinds if each is not NoneType]
    choices = [choice for each in bare if get_origin(each) is Literal for choice in get_args(each)]
    others = [each for each in bare if get_origin(each) is not Literal]
    if choices and not others:
        return Field(name, "choice", tuple(choices), optional, default)
    if len(others) != 1 or others[0] not in _KINDS:
        return None
    kind: Kind = "text" if choices else _KINDS[others[0]]
    return Field(name, kind, (), optional, default)


def _plain(annotation: Any) -> list[Any]:
    """Return the alternatives of a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return [each for part in get_args(annotation) for each in _plain(part)]
    return [annotation]


def at(document: Any, path: str) -> Any:
    """Return what stands at the dotted `path`, None where nothing does."""
    here = document
    for part in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here


def changed(document: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return `document` with `value` at the dotted `path`; with None, without what stood there.

    Raises:
        SpecError: the path runs through something that is no mapping.
    """
    new = deepcopy(dict(document))
    if value is not None:
        set_path(new, path, value)
        return new
    parent, _, key = path.rpartition(".")
    holder = at(new, parent) if parent else new
    if isinstance(holder, dict):
        holder.pop(key, None)
        if parent and not holder:
            return changed(new, parent, None)
    return new


def as_text(document: Any) -> str:
    """Return a document as YAML, with short lists and mappings on one line."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Writes what holds only plain values on one line, unless it is the whole document."""

    def represent(self, data: Any) -> None:
        node = self.represent_data(data)
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = False
        self.serialize(node)


def _one_line(dumper: yaml.SafeDumper, value: Any) -> yaml.Node:
    node = (
        dumper.represent_dict(value.items())
        if isinstance(value, dict)
        else dumper.represent_list(value)
    )
    inner = list(value.values()) if isinstance(value, dict) else value
    plain = all(not isinstance(each, dict | list) for each in inner)
    node.flow_style = plain and len(str(value)) <= MOST_ON_A_LINE
    return node


_Dumper.add_representer(dict, _one_line)
_Dumper.add_representer(list, _one_line)
