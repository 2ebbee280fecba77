"""The page that the campaign of planned runs writes, from what it saw."""

from __future__ import annotations

from collections.abc import Iterator

from tests.campaigns.telling import Json


def page(kept: Json) -> Iterator[str]:
    """Yield the page, piece by piece."""
    if "drift" in kept:
        yield from _of_drift(kept["drift"])
    if "joins" in kept:
        yield from _of_joins(kept["joins"])
    if "calibrated" in kept:
        yield from _of_calibration(kept["calibrated"])
    if "kinds" in kept:
        yield from _of_kinds(kept["kinds"])


def _conditions(told: Json) -> str:
    before, after = told["load"]
    machine = told["conditions"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), torch {machine['versions']['torch']}. "
        f"Load average {before:.1f} as it began, {after:.1f} as it ended.\n\n"
    )


def _of_drift(told: Json) -> Iterator[str]:
    step = told["step_s"]
    yield f"\n## A device slows down\n\n{_conditions(told)}"
    yield "| | |\n|---|---|\n"
    for at, (plan, predicted) in enumerate(zip(told["plans"], told["predicted_s"], strict=True)):
        yield f"| plan of generation {at + 1} | {plan}; predicted {predicted:.3f} s |\n"
    yield f"| median step before step {told['drifts_at']} | {step['before']:.3f} s |\n"
    yield f"| from there to step {told['went_on_at'] - 1} | {step['slowed']:.3f} s |\n"
    yield f"| after going over | {step['after']:.3f} s |\n\n"
    yield "".join(f"> {each}\n" for each in told["because"])


def _of_joins(told: Json) -> Iterator[str]:
    yield f"\n## Faster nodes join\n\n{_conditions(told)}"
    yield "| generation | plan | steps | predicted s | measured s |\n|---|---|---|---|---|\n"
    rows = zip(told["plans"], told["steps"], told["predicted_s"], told["step_s"], strict=True)
    for at, (plan, (first, last), predicted, measured) in enumerate(rows):
        foretold = "-" if predicted is None else f"{predicted:.3f}"
        yield f"| {at + 1} | {plan} | {first} to {last} | {foretold} | {measured:.3f} |\n"
    yield "\n"
    for at, (waited, between) in enumerate(zip(told["trained_s"], told["between_s"], strict=True)):
        yield (
            f"Generation {at + 1} had trained for {waited:.1f} s "
            f"(`replan_after_s` {told['replan_after_s']:g}) as the move was decided; from its last "
            f"step to the next, of generation {at + 2}, it took {between:.1f} s.\n"
        )
    yield "\n"
    yield "".join(f"> {each}\n" for each in told["because"])


def _of_calibration(told: Json) -> Iterator[str]:
    measured, predicted = told["measured_s"], told["predicted_s"]
    yield f"\n## Measured nodes\n\n{_conditions(told)}"
    yield "| | |\n|---|---|\n"
    yield f"| plan | {told['plan']} |\n"
    yield f"| step predicted | {predicted:.3f} s |\n"
    yield f"| step measured | {measured:.3f} s ({predicted / measured - 1:+.1%}) |\n"
    yield f"| the even split | {told['even_s']:.3f} s ({told['even_s'] / measured:.2f} times) |\n"


def _of_kinds(told: Json) -> Iterator[str]:
    yield f"\n## Plans of several kinds\n\n{_conditions(told)}"
    yield "| fleet | plan | predicted s | measured s | off by | losses off by at most |\n"
    yield "|---|---|---|---|---|---|\n"
    for each in told["plans"]:
        off = each["predicted_s"] / each["measured_s"] - 1
        yield (
            f"| {each['fleet']} | {each['plan']} | {each['predicted_s']:.3f} | "
            f"{each['measured_s']:.3f} | {off:+.1%} | {each['loss_off']:.0e} |\n"
        )
