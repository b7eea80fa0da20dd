# make train, make test: everything else is set up on the way.
PYTHON ?= python3
BIN := .venv/bin
LOGDIR ?= runs/tiny
BENCHES ?= config startup data lm faults mesh runtimes moe pipeline
PYTEST := $(BIN)/python -m pytest -n 2 --dist=loadgroup

.PHONY: train test test-all quick slow faults grid lint types docs-check bench golden house clean

train: .venv/installed  ## trains a byte-level language model on TensorFlow's own source
	$(BIN)/lingo train --exp=lm.source.tiny --logdir=$(LOGDIR)

test: lint types quick  ## lint, types and the quick tests: ten minutes on two cores

test-all: test slow faults docs-check  ## all tests: what CI runs

quick: .venv/installed  ## the tests that are not in tests/slow.txt
	$(BIN)/python -m tools.suite quick

slow: .venv/installed  ## the tests that are
	$(BIN)/python -m tools.suite slow

# worksteal, and three on two cores: these tests wait for processes, some of which sleep.
faults: .venv/installed  ## kills, full disks, flipped bytes: tests with real processes
	$(PYTEST) -n 3 --dist=worksteal -m faults --durations=30 tests/faults

grid: .venv/installed  ## a pipeline of every number of stages and micro-batches
	$(PYTEST) -m grid tests/lingo/layers/stacks tests/lingo/runtimes/mesh

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/pyright

docs-check: .venv/installed  ## runs the commands of README.md, CONTRIBUTING.md and docs/
	$(PYTEST) --dist=worksteal -m docs tests/test_docs.py

golden: .venv/installed  ## writes the resolved text and weight table of every experiment
	$(BIN)/lingo golden --write

house: .venv/installed  ## lines, files, names and circles of the source, with their bounds
	$(BIN)/python -m tools.house --trace

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
