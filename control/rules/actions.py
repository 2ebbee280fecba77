"""The ladder of a rule: which action its next rung is, and whether it may still climb. Pure; a
closed set of actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.actions import Action, Choose, Rollback
from trainmaster.batches import batches_of_steps
from trainmaster.rule import Rule

Range = tuple[int, int]
LrWindow = tuple[int, int, float]


def next_action(rule: Rule, num_taken: int) -> Action | None:
    """Return the action after `num_taken` of one incident; None when the ladder's budget is spent
    or it has none.

    The last rung is repeated within `max_actions`.
    """
    if not rule.actions or num_taken >= rule.max_actions:
        return None
    return rule.actions[min(num_taken, len(rule.actions) - 1)]


def batches_to_skip(
    action: Rollback, first_bad_step: int, last_bad_step: int, skip: Sequence[Range]
) -> tuple[Range, ...]:
    """Return the batches that the bad steps consumed under `skip`, if the action skips them."""
    if not action.skip:
        return ()
    return batches_of_steps(first_bad_step, last_bad_step, skip)


def lr_window(action: Rollback, resumed_from_step: int) -> LrWindow | None:
    """Return the window in which the learning rate is lowered after the rollback, if it is."""
    if action.lr_factor is None:
        return None
    first_step = resumed_from_step + 1
    return first_step, first_step + action.lr_factor_steps - 1, action.lr_factor


_DOES = {
    "skip": "let the ranks skip the update",
    "checkpoint": "take a checkpoint",
    "hold": "hold the ranks until a person decides",
    "stop": "checkpoint and stop",
    "restart": "end all ranks and go on from the newest good checkpoint",
    "degrade": "go on with a single node",
    "rebalance": "give slow replicas a smaller share",
    "cordon": "cordon the node",
    "dump_stacks": "keep where each rank's threads stand",
    "notify": "tell people",
}


def describe(action: Action) -> str:
    """Return what the action does, to stand in a sentence."""
    if isinstance(action, Choose):
        return f"do what {action.by!r} chooses"
    if not isinstance(action, Rollback):
        return _DOES[action.action]
    changes = ["skip the batches of the bad steps"] if action.skip else []
    if action.lr_factor is not None:
        changes.append(
            f"multiply the learning rate by {action.lr_factor:g} for {action.lr_factor_steps} steps"
        )
    back = f" {action.earlier} trusted checkpoints further" if action.earlier else ""
    return f"roll back{back} and {' and '.join(changes)}"
