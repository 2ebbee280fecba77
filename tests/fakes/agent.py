"""`python -m tests.fakes.agent`: a real agent and a real nest; ranks are `tests.fakes.ranks`."""

import logging
import sys

from worker.agent import settings
from worker.agent.__main__ import run
from worker.agent.nest_process import NEST_COMMAND

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    fakes = ("--train", "tests.fakes.ranks", "--describe", "tests.fakes.ranks")
    run(settings.read([]), nest_command=(*NEST_COMMAND, *fakes))
