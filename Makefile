# make train, make test: everything else is set up on the way.
PYTHON ?= python3
BIN := .venv/bin
LOGDIR ?= runs/tiny
BENCHES ?= config startup data lm serve faults runtimes pipeline
TPU_PACKAGES := tensorflow-tpu==2.20.0 libtpu==0.0.21 'tensorboard>=2.20,<2.22' \
    'fiddle>=0.3,<0.4' 'absl-py>=2.1' 'numpy>=2.0' 'rich>=13' 'google-crc32c>=1.5' \
    'pillow>=10.1'

.PHONY: train test ci part test-all quick faults docs-check test-tf220 tpu-env gpu-day tpu-day lint \
    types bench \
    golden house docs release clean

train: .venv/installed  ## trains a byte-level language model on TensorFlow's own source
	$(BIN)/lingo train --exp=lm.source.tiny --logdir=$(LOGDIR)

test: lint types quick  ## lint, types and the quick tests: ten minutes on two cores

ci: .venv/installed  ## these, the promises, tests of what changed, and a part of the others
	$(BIN)/python -m tools.suite ci

part: .venv/installed  ## `make part PART=3`: a part of the slow tests
	$(BIN)/python -m tools.suite part $(PART)

test-all: .venv/installed  ## lint, types and every test, with a line in docs/results/suite.jsonl
	$(BIN)/python -m tools.suite all

quick: .venv/installed  ## the tests that are not in tests/slow.txt
	$(BIN)/python -m tools.suite quick

faults: .venv/installed  ## kills, full disks, flipped bytes: slow tests with real processes
	$(BIN)/python -m tools.suite slow tests/faults

docs-check: .venv/installed  ## runs the commands of README.md, CONTRIBUTING.md and docs/, builds the site
	$(BIN)/python -m tools.suite slow tests/test_docs.py tests/test_notebooks.py tests/test_site.py

test-tf220: .venv-2.20/installed  ## the quick tests with TensorFlow 2.20, in an environment of its own
	.venv-2.20/bin/python -m tools.suite quick

# Not part of CI: it downloads 1 GB. The tests left out need JAX, or XLA for processors, which
# tensorflow-tpu does not have.
tpu-env: export TPU_SKIP_MDS_QUERY = 1
tpu-env: .venv/installed  ## a fresh environment with tensorflow-tpu: imports, trains, lowers for a TPU
	rm -rf .venv-tpu build/tpu
	$(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install --quiet $(TPU_PACKAGES) 'scikit-learn>=1.5,<2' pytest
	$(BIN)/python -m build --wheel --outdir build/tpu .
	.venv-tpu/bin/python -m pip install --quiet --no-deps build/tpu/*.whl
	cd build/tpu && ../../.venv-tpu/bin/lingo check --exp=tiny --trace
	cd build/tpu && ../../.venv-tpu/bin/lingo train --exp='tiny(model_dim=16, num_layers=1)' \
	    --set=max_steps=1 --set=eval_inputs={} --logdir=run
	.venv-tpu/bin/python -m pytest -m '' tests/lingo/runtimes/tpu \
	    --ignore=tests/lingo/runtimes/tpu/test_core_program.py -k 'not annotated_in_its_hlo'
	.venv-tpu/bin/python -m pytest -m '' tests/lingo/runtimes/tpu/on_kernels.py

gpu-day: .venv-gpu/installed  ## what a GPU has not shown yet, in half an hour: build/day/gpu
	.venv-gpu/bin/python -m tools.day gpu $(DAY)

tpu-day: .venv-tpu-day/installed  ## the same of a TPU, on its machine: build/day/tpu
	.venv-tpu-day/bin/python -m tools.day tpu $(DAY)

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/installed
	$(BIN)/pyright

golden: .venv/installed  ## writes the resolved text and weight table of every experiment
	$(BIN)/lingo golden --write

house: .venv/installed  ## lines, files, names and circles of the source, with their bounds
	$(BIN)/python -m tools.house --trace

docs: .venv/installed  ## the site of the documents, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: .venv/installed  ## ratios against other implementations, measured in one run
	missed=; for name in $(BENCHES); do \
	    $(BIN)/python -m tools.bench $$name || missed="$$missed $$name"; \
	done; test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

release: .venv/installed  ## builds wheel and sdist in dist/, checks them, installs and tries each alone
	$(BIN)/python -m tools.release

.venv/installed: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.venv-2.20/installed: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv-2.20
	.venv-2.20/bin/python -m pip install --quiet --upgrade pip
	.venv-2.20/bin/python -m pip install --quiet 'tensorflow==2.20.*' --editable '.[dev]'
	touch $@

.venv-gpu/installed: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --editable '.[gpu,mesh-gpu,data]'
	touch $@

.venv-tpu-day/installed: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv-tpu-day
	.venv-tpu-day/bin/python -m pip install --quiet $(TPU_PACKAGES) 'scikit-learn>=1.5,<2'
	.venv-tpu-day/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf .venv .venv-2.20 .venv-gpu .venv-tpu .venv-tpu-day runs dist build
