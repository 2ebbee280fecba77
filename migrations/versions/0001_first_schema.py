"""first schema

Revision: 0001
After:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=80), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "chores",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=True),
        sa.Column("node", sa.String(length=63), nullable=True),
        sa.Column("bound", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chores")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("chores", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_chores_key"), ["key"], unique=False)
        batch_op.create_index(batch_op.f("ix_chores_state_node"), ["state", "node"], unique=False)

    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("metrics_port", sa.Integer(), nullable=True),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("clock_skew_s", sa.Float(precision=53), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "rules",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("pack", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_by", sa.String(length=200), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_rules")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("desired", sa.String(length=40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("workload_key", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_root", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("code", sa.String(length=40), nullable=True),
        sa.Column("weights_sha256", sa.String(length=80), nullable=True),
        sa.Column("next_look_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("touched", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_runs_idempotency_key")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_runs_next_look_at"), ["next_look_at"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=40), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("sha256", name=op.f("uq_tokens_sha256")),
    )
    op.create_table(
        "workloads",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("info", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("described_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("node", sa.String(length=63), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_workloads")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("rule", sa.String(length=200), nullable=False),
        sa.Column("scope", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("value", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("threshold", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("first_bad_step", sa.BigInteger(), nullable=True),
        sa.Column("severity", sa.String(length=40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("incident", sa.String(length=200), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_alerts_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_alerts_run_rule_scope"), ["run", "rule", "scope"], unique=False
        )

    op.create_table(
        "attempts",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent_generation", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("cause_kind", sa.String(length=40), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("checkpoint_every", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_because", sa.Text(), nullable=False),
        sa.Column("resumed_from_step", sa.BigInteger(), nullable=False),
        sa.Column("resumed_from_checkpoint", sa.String(length=200), nullable=True),
        sa.Column("skip", sa.JSON(), nullable=False),
        sa.Column("own_skip", sa.JSON(), nullable=False),
        sa.Column("lr_windows", sa.JSON(), nullable=False),
        sa.Column("lr_factor", sa.Float(precision=53), nullable=True),
        sa.Column("store", sa.String(length=300), nullable=True),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("incident", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_attempts_run_runs")),
        sa.PrimaryKeyConstraint("run", "generation", name=op.f("pk_attempts")),
    )
    op.create_table(
        "cursors",
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("stream", sa.String(length=200), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["nodes.id"], name=op.f("fk_cursors_node_nodes")),
        sa.PrimaryKeyConstraint("node", "stream", name=op.f("pk_cursors")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=80), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_events_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_run_id"), ["run", "id"], unique=False)

    op.create_table(
        "incidents",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("rule", sa.String(length=200), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("closed_as", sa.String(length=40), nullable=True),
        sa.Column("rung", sa.Integer(), nullable=False),
        sa.Column("first_bad_step", sa.BigInteger(), nullable=False),
        sa.Column("last_bad_step", sa.BigInteger(), nullable=False),
        sa.Column("actions", sa.JSON(), nullable=False),
        sa.Column("verification", sa.JSON(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_incidents_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
    )
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_incidents_run_opened_at"), ["run", "opened_at"], unique=False
        )

    op.create_table(
        "login_codes",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("token", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name=op.f("fk_login_codes_token_tokens")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_login_codes")),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_requests_run_runs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        sa.UniqueConstraint("run", "idempotency_key", name=op.f("uq_requests_run_idempotency_key")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "rule_versions",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("change", sa.String(length=40), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["name"], ["rules.name"], name=op.f("fk_rule_versions_name_rules")),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_rule_versions")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(length=200), nullable=True),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trusted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("loss", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("because", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_checkpoints_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint(
            "run", "generation", "step", name=op.f("uq_checkpoints_run_generation_step")
        ),
    )
    op.create_table(
        "drills",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("drill", sa.JSON(), nullable=False),
        sa.Column("fired", sa.JSON(), nullable=False),
        sa.Column("request", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"], ["requests.id"], name=op.f("fk_drills_request_requests")
        ),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_drills_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("run", "generation", "id", name=op.f("pk_drills")),
    )
    op.create_table(
        "orders",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("request", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["request"], ["requests.id"], name=op.f("fk_orders_request_requests")
        ),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_orders_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("run", "generation", "seq", name=op.f("pk_orders")),
    )
    with op.batch_alter_table("orders", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_orders_request"), ["request"], unique=False)

    op.create_table(
        "ranks",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("replica", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("boot", sa.String(length=64), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("exited_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("finished", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_ranks_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("run", "generation", "rank", name=op.f("pk_ranks")),
    )
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_ranks_node"), ["node"], unique=False)

    op.create_table(
        "sample_chunks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=False),
        sa.Column("num_skipped", sa.Integer(), nullable=False),
        sa.Column("columns", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_sample_chunks_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sample_chunks")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("sample_chunks", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_sample_chunks_run_generation_rank_last_step"),
            ["run", "generation", "rank", "last_step"],
            unique=False,
        )

    op.create_table(
        "slots",
        sa.Column("node", sa.String(length=63), nullable=False),
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "generation"],
            ["attempts.run", "attempts.generation"],
            name=op.f("fk_slots_run_generation_attempts"),
        ),
        sa.PrimaryKeyConstraint("node", "slot", name=op.f("pk_slots")),
    )
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_slots_run"), ["run"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("slots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_slots_run"))

    op.drop_table("slots")
    with op.batch_alter_table("sample_chunks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_sample_chunks_run_generation_rank_last_step"))

    op.drop_table("sample_chunks")
    with op.batch_alter_table("ranks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_ranks_node"))

    op.drop_table("ranks")
    with op.batch_alter_table("orders", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_orders_request"))

    op.drop_table("orders")
    op.drop_table("drills")
    op.drop_table("checkpoints")
    op.drop_table("rule_versions")
    op.drop_table("requests")
    op.drop_table("login_codes")
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_incidents_run_opened_at"))

    op.drop_table("incidents")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_run_id"))

    op.drop_table("events")
    op.drop_table("cursors")
    op.drop_table("attempts")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_alerts_run_rule_scope"))

    op.drop_table("alerts")
    op.drop_table("workloads")
    op.drop_table("tokens")
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_runs_next_look_at"))

    op.drop_table("runs")
    op.drop_table("rules")
    op.drop_table("nodes")
    with op.batch_alter_table("chores", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_chores_state_node"))
        batch_op.drop_index(batch_op.f("ix_chores_key"))

    op.drop_table("chores")
    op.drop_table("audit")
