# The two commands of a newcomer are `make run` and `make test`; `make` alone lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST_ARGS ?=
# Those that can run side by side: no processes of ranks, no browser, nothing whose story has a pace; and commands, two at a time, which mostly wait.
BESIDE := not distributed and not prometheus and not processes and not browser and not scenario and not matrix and not gpu
COMMANDS := processes and not scenario and not prometheus and not browser and not distributed and not matrix and not gpu
FAST := $(BESIDE) and not postgres and not slow
# With arguments of yours a part may have nothing to run, which pytest tells as 5.
NONE_OK := $(if $(PYTEST_ARGS),|| [ $$? -eq 5 ])

.PHONY: help setup run lint test test-gpu matrix campaign-control campaign-corruption campaign-drills campaign-planner check fmt docs lock bench-ingest bench-restore bench-fleet bench-bubble bench-dashboard bench-monitoring clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: ## virtual environment and pinned packages, nothing else
	@scripts/setup

run: setup ## control plane, agent, dashboard and the example run, with live progress (stays up)
	@exec $(BIN)/trainmaster up --demo

check: lint ## format, lint, types, import contracts, fast tests: the gate before each commit
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses auto --maxprocesses 8 -m "$(FAST)" $(PYTEST_ARGS)

lint: setup ## format, lint, types, import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

# One thread a process: the tests start many, and threads fighting for few cores make them slow and their timing random.
test: setup ## the whole test suite, with the system packages it needs
	@scripts/system-packages tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile -m "$(BESIDE)" $(PYTEST_ARGS) $(NONE_OK)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 2 --dist loadfile -m "$(COMMANDS)" $(PYTEST_ARGS) $(NONE_OK)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile -m "not matrix and not gpu and not ($(BESIDE)) and not ($(COMMANDS))" $(PYTEST_ARGS) $(NONE_OK)

test-gpu: setup ## what only CUDA devices can show; skips what needs more of them than there are (docs/gpu.md)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -rs -m gpu tests/gpu $(PYTEST_ARGS)

matrix: setup ## every proven cell of docs/matrix.md against a single process (some minutes)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "matrix or not matrix" tests/distributed/test_matrix.py $(PYTEST_ARGS)

campaign-control: setup ## kill control planes on one PostgreSQL for a while (MINUTES=10)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaigns.kill_control --minutes $(or $(MINUTES),10)

campaign-corruption: setup ## damage a checkpoint in 1,000 random ways; none may be restored (TRIALS=1000)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaigns.corrupt_checkpoints --trials $(or $(TRIALS),1000)

campaign-drills: setup ## every kind of fault live on a small run: noticed when, done what, cost what (NAMES="kill hang")
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaigns.drills --write $(if $(NAMES),--only $(NAMES))

campaign-planner: setup ## plans for emulated clusters, predicted and run (ten minutes, on a machine that does nothing else)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaigns.planner --write

fmt: setup ## format, and repair what ruff can repair
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: setup ## write the pages that follow from code
	$(BIN)/python -m scripts.generate_docs
	$(BIN)/python -m scripts.lifecycle_chart
	$(BIN)/python -m scripts.grafana_boards

lock: ## resolve pyproject.toml anew into requirements.lock
	scripts/lock

BENCH_ARGS ?=
bench-ingest: setup ## points/s from spool to SQL, logging cost, reads, beside other trackers (docs/bench.md)
	$(BIN)/python -m bench.ingest --out test-results/bench $(BENCH_ARGS)

bench-restore: setup ## a verified restore beside reading and hashing as many bytes (docs/bench.md)
	$(BIN)/python -m bench.checkpoint.restore --out test-results/bench $(BENCH_ARGS)

bench-rules: setup ## what judging costs: a back-test of a million steps, a turn (docs/bench.md)
	$(BIN)/python -m bench.rules $(BENCH_ARGS)

bench-fleet: setup ## thousands of simulated agents against two control planes (docs/bench.md)
	$(BIN)/python -m bench.fleet --out test-results/bench $(BENCH_ARGS)

bench-dashboard: setup ## the dashboard in Chromium: how soon it answers, what viewers cost (docs/bench.md)
	$(BIN)/python -m bench.dashboard --out test-results/bench $(BENCH_ARGS)

bench-bubble: setup ## the bubble of emulated pipelines beside its formula (docs/bench.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.runtime.bubble $(BENCH_ARGS)

bench-monitoring: setup ## what measuring costs a rank in each step (docs/bench.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.runtime.monitoring $(BENCH_ARGS)

clean: ## remove what set-up and tests left (not the state directory .trainmaster)
	rm -rf .venv .setup.lock .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist test-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
