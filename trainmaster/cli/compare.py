"""`trainmaster compare`: how far the weights of two checkpoints lie apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import answered
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.cli.weights import opened
from trainmaster.errors import TrainmasterError
from trainmaster.ids import parse_checkpoint_id

TIMEOUT_S = 3600.0


def compare(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT_OR_PATH")],
    other: Annotated[str, typer.Argument(metavar="OTHER_OR_PATH")],
    as_json: AsJson = False,
) -> None:
    """Tell, layer by layer, the norms of two checkpoints' weights and of their difference.

    By their ids a node reads them; two paths or URLs need no control plane.
    """
    session = session_of(context)
    both = (checkpoint, other)
    if all(parse_checkpoint_id(each) is not None and not Path(each).exists() for each in both):
        found = _compared_by_a_node(session, *both)
    else:
        from trainmaster.checkpoint.comparison import compare as compare_weights

        here, there = (opened(session, each) for each in both)
        found = compare_weights(here, there).model_dump(mode="json")
        found |= {"checkpoint": checkpoint, "other": other}
    if as_json:
        session.output.json(found)
    else:
        _tell(session, found)


def _compared_by_a_node(session: Session, checkpoint: str, other: str) -> dict[str, Any]:
    of, beside = segment("checkpoint", checkpoint), segment("checkpoint", other)
    asked = session.api.post(f"/v1/checkpoints/{of}/compare/{beside}")
    done = answered(session, asked, TIMEOUT_S)
    if not done["ok"]:
        because = "; ".join(each["message"] for each in done["findings"])
        raise TrainmasterError(f"{checkpoint} and {other} could not be compared: {because}")
    return done


def _tell(session: Session, found: dict[str, Any]) -> None:
    rows = [[_layer(each["layer"]), each["tensors"], *_figures(each)] for each in found["layers"]]
    if rows:
        rows.append(["all", sum(each["tensors"] for each in found["layers"])])
        rows[-1] += _figures(found["whole"])
    session.output.table(
        ["LAYER", "TENSORS", "NORM", "OTHER NORM", "DIFFERENCE", "RELATIVE", "LARGEST", "CHANGED"],
        rows,
        "They have no tensor in common.",
    )
    for whose, key in (("the first", "not_finite"), ("the other", "other_not_finite")):
        sick = [_layer(each["layer"]) for each in found["layers"] if each.get(key)]
        if sick:
            session.output.say(
                f"{found['whole'][key]} numbers of {whose} are not finite (layer"
                f" {', '.join(sick)}): norms and differences leave them out."
            )
    if found["without_counterpart"]:
        names = [*found["only_here"], *found["only_there"]]
        names += [each["name"] for each in found["unlike"]]
        session.output.say(
            f"{found['without_counterpart']} tensors are in one of them alone, or have another "
            f"shape in the other, such as {names[0]}"
        )


def _layer(number: int | None) -> str:
    return "-" if number is None else str(number)


def _figures(of: dict[str, Any]) -> list[str]:
    relative, elements = of["relative_difference"], of["elements"]
    return [
        f"{of['norm']:.6g}",
        f"{of['other_norm']:.6g}",
        f"{of['difference_norm']:.3g}",
        "-" if relative is None else f"{relative:.3g}",
        f"{of['largest_difference']:.3g}",
        f"{of['changed'] / elements:.1%}" if elements else "-",
    ]
