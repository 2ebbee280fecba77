"""`python -m bench.ingest.agent`: the real agent with the real nest; ranks are
`bench.ingest.rank`.
"""

from __future__ import annotations

import logging
import sys

from worker.agent import settings
from worker.agent.__main__ import run
from worker.agent.nest_process import NEST_COMMAND

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    ranks = ("--train", "bench.ingest.rank", "--describe", "bench.ingest.rank")
    run(settings.read([]), nest_command=(*NEST_COMMAND, *ranks))
