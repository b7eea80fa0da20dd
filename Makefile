# make train, make test: everything else is set up on the way.
PYTHON ?= python3
BIN := .venv/bin
LOGDIR ?= runs/tiny
FAULTS ?= faults or not faults
BENCHES ?= config startup data lm faults mesh runtimes moe pipeline
PYTEST := $(BIN)/python -m pytest -n 2 --dist=loadgroup

.PHONY: train test faults grid lint types docs-check bench golden clean

train: .venv/installed  ## trains a byte-level language model on TensorFlow's own source
	$(BIN)/lingo train --exp=lm.source.tiny --logdir=$(LOGDIR)

# In parts: TensorFlow and JAX keep every function that a process has compiled.
test: .venv/installed lint types  ## lint, types and all tests
	$(PYTEST) tests/lingo/layers tests/lingo/ops
	$(PYTEST) tests/lingo/train --ignore=tests/lingo/runtimes
	$(PYTEST) tests/lingo/runtimes tests/lingo/decode tests/tasks
	$(PYTEST) tests --ignore=tests/lingo/layers --ignore=tests/lingo/ops \
	    --ignore=tests/lingo/train --ignore=tests/lingo/decode --ignore=tests/tasks

# Not more at a time: what a test waits for comes too late on a machine that is busy.
faults: .venv/installed  ## kills, full disks, flipped bytes: tests with real processes
	$(PYTEST) --dist=worksteal -m "$(FAULTS)" --durations=30 tests/faults

grid: .venv/installed  ## a pipeline of every number of stages and micro-batches
	$(PYTEST) -m grid tests/lingo/layers/stacks tests/lingo/runtimes/mesh

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/pyright

docs-check: .venv/installed  ## runs the commands of README.md and CONTRIBUTING.md
	$(BIN)/python -m pytest -n 2 -m docs tests/test_docs.py

golden: .venv/installed  ## writes the resolved text and weight table of every experiment
	$(BIN)/lingo golden --write

bench: .venv/installed  ## ratios against other implementations, measured in one run
	missed=; for name in $(BENCHES); do \
	    $(BIN)/python -m tools.bench $$name || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

.venv/installed: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs dist build
