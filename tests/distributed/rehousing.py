"""Real ranks that restore a checkpoint under one plan and save it again at once, with no step in
between.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.distributed.ranks import A_HANG_S, FORKS
from trainmaster.ids import rank_stream
from trainmaster.metrics import STEP_METRIC_NAMES
from trainmaster.plan import Plan
from trainmaster.spec import RunSpec
from trainmaster.spool import Header
from trainmaster.wire import Assignment, RankAssignment, Resume
from worker.launch import Launch


def rehouse(folder: Path, spec: RunSpec, plan: Plan, resume: Resume, generation: int) -> Resume:
    """Restore with the ranks of `plan`, save as the checkpoint of `generation`; return that."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    home = folder / f"rehoused-{generation}"
    home.mkdir(parents=True)
    shared = Assignment(
        run="r1",
        generation=generation,
        world_size=plan.world_size,
        hosts_store=True,
        store=f"127.0.0.1:{store.port}",
        ranks=[RankAssignment(rank=rank, slot=rank) for rank in range(plan.world_size)],
        spec=spec,
        plan=plan,
        resume=resume,
        checkpoint_every=1000,
        checkpoint_root=(folder / "checkpoints").as_uri(),
    )
    processes = []
    for rank in range(plan.world_size):
        spool = home / f"rank-{rank}.spool"
        launch = Launch(
            assignment=shared, rank=rank, node="here", spool=spool, inbox=home / "inbox.json"
        )
        processes.append(FORKS.Process(target=_rehouse, args=(launch.model_dump_json(), str(home))))
        processes[-1].start()
    for rank, process in enumerate(processes):
        process.join(A_HANG_S)
        log = home / f"rank-{rank}.log"
        assert process.exitcode == 0, (process.exitcode, log.read_text()[-3000:])
    digest, location = (home / "told").read_text().split()
    return Resume(
        checkpoint=f"r1-g{generation}-s{resume.step}",
        step=resume.step,
        location=location,
        manifest_sha256=digest,
    )


def _rehouse(told: str, home: str) -> None:
    import torch

    from worker import groups
    from worker.assembly import assemble, course_of
    from worker.checkpoint.reader import open_checkpoint
    from worker.checkpoint.tensors import as_shard
    from worker.checkpoint.writer import save
    from worker.reporting.spoolfile import SpoolFile
    from worker.storage import open_storage
    from worker.training_state import named_for_loading, optimizer_tensors, tensors_of

    launch = Launch.model_validate_json(told)
    assignment, rank = launch.assignment, launch.rank
    output = os.open(Path(home) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    stream = rank_stream(assignment.run, assignment.generation, rank)
    spool = SpoolFile(launch.spool, Header(stream, STEP_METRIC_NAMES))
    parts = assemble(launch, spool, course_of(assignment))
    storage, resume = open_storage(assignment.checkpoint_root), assignment.resume
    assert resume is not None
    opened = open_checkpoint(storage, resume.location, manifest_sha256=resume.manifest_sha256)
    state = optimizer_tensors(opened.manifest, parts.gradients.pieces)
    opened.load(named_for_loading(parts.layers, state, parts.role))
    parts.gradients.refresh()
    parts.optimizer.adopt({name: as_shard(each).tensor for name, each in state.items()})
    saved = save(
        storage,
        run=assignment.run,
        generation=assignment.generation,
        step=resume.step,
        layout=assignment.plan.model_dump(mode="json", exclude={"predicted"}),
        parent=None,
        tensors=tensors_of(parts.layers, parts.gradients.pieces, parts.optimizer, parts.role),
        state=opened.state if rank == 0 else None,
        group=parts.groups.checkpoint,
        rank=rank,
        world_size=assignment.plan.world_size,
    )
    if rank == 0:
        (Path(home) / "told").write_text(f"{saved.manifest_sha256} {saved.location}")
    groups.leave(parts.groups)
    os._exit(0)
