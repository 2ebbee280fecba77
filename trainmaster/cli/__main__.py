"""Entry point: commands by name, and errors as sentences and exit statuses."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import trainmaster
from trainmaster.cli import (
    adoption,
    answers,
    backtest,
    calibrate,
    channels,
    checkpoints,
    compare,
    doctor,
    drill,
    export,
    goodput,
    nodes,
    plan,
    processes,
    read,
    rules,
    stacks,
    steer,
    submit,
    timeline,
    tokens,
    top,
    up,
    weights,
)
from trainmaster.cli.output import Output
from trainmaster.cli.session import Session
from trainmaster.cli.settings import from_environment
from trainmaster.errors import SpecError, TrainmasterError, UserError

HELP = """Train on unequal machines, with someone who watches, decides, repairs and says why.

Reads TRAINMASTER_URL and TRAINMASTER_TOKEN; without a token, the one that `up` stored in
TRAINMASTER_HOME (./.trainmaster). Exit status: 0 done, 1 the run or action failed, 2 bad usage,
3 control plane out of reach, 4 refused.
"""


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"trainmaster {trainmaster.__version__}\n")
        raise typer.Exit


def build() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
        ] = False,
    ) -> None:
        pass

    for command in (
        *(up.up, processes.ps, processes.down, submit.submit),
        *(read.runs, read.show, read.events, read.alerts, read.incidents, read.checkpoints),
        *(read.nodes, goodput.goodput, stacks.stacks, read.logs, read.series),
        *(timeline.timeline, export.export, top.top),
        *(steer.pause, steer.resume, steer.stop, steer.checkpoint, steer.restore, steer.amend),
        *(checkpoints.verify, compare.compare, checkpoints.pin, checkpoints.unpin),
        weights.export_weights,
        *(nodes.cordon, nodes.uncordon, calibrate.calibrate, plan.plan),
        *(backtest.backtest, drill.drill),
        *(tokens.audit, doctor.doctor),
        *(answers.approve, answers.dismiss, answers.silence, answers.maintenance),
        *(answers.silences, answers.unsilence),
        *(processes.control, processes.agent, processes.dashboard),
    ):
        app.command()(command)
    app.command("import")(adoption.adopt)
    app.add_typer(rules.app, name="rules")
    app.add_typer(channels.app, name="channels")
    app.add_typer(tokens.app, name="token")
    rules.app.command("test")(backtest.run_tests)
    return app


def run_command(app: typer.Typer, words: list[str], session: Session) -> int:
    """Run one command and return its exit status; what went wrong is told on stderr."""
    try:
        app(words, obj=session, prog_name="trainmaster")
    except TrainmasterError as error:
        session.output.say(complaint(error))
        return error.exit_status
    except OSError as error:
        session.output.say(disk_complaint(error))
        return UserError.exit_status
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        session.close()
    return 0


def main() -> None:
    """Run the command of `sys.argv` and exit with its status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name in any script must not end it
    output = Output()
    try:
        session = Session(from_environment(), output)
    except TrainmasterError as error:
        output.say(complaint(error))
        sys.exit(error.exit_status)
    sys.exit(run_command(build(), sys.argv[1:], session))


def disk_complaint(error: OSError) -> str:
    """Return what a person reads when a file of this machine cannot be used."""
    where = f"{error.filename}: " if error.filename else ""
    return (
        f"{where}{error.strerror or error}: free some space, mend its permissions, or set "
        f"TRAINMASTER_HOME to another folder"
    )


def complaint(error: TrainmasterError) -> str:
    """Return what a person reads of an error: a sentence, or one line per problem."""
    if isinstance(error, SpecError):
        return "\n".join(" ".join(str(problem).split()) for problem in error.problems)
    return error.message


if __name__ == "__main__":
    main()
