PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo demo-loop test test-slow test-stack lint types unit bench paper fidelity clean

# What a new user runs: install and search the published case.
demo: $(VENV)/.runtime
	$(BIN)/slotgrid search --profile rbln-ca25-qwen3-4b --workload tracelab-two-turn --sessions 6,8,10 \
		--batch 8,10,12,16 --max-buckets 6 --compile-budget 30m --baseline 1,2,4,8 -o out/demo

# The whole loop on a small real engine: compile, serve, calibrate, replay, diagnose, predicted against measured.
demo-loop: $(VENV)/.serve
	$(BIN)/python examples/demo_loop.py

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev $(VENV)/.stack
	$(BIN)/pytest -n 2 --dist loadfile

# By hand: load from 200 clients, the real small model (with its weights), calibration, a study and the demo on the engine.
test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow -s

# By hand: results go to docs/performance.md.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# Every row of the published targets: published number, ours, equal or not.
paper: $(VENV)/.runtime
	$(BIN)/python examples/reproduce_paper.py

# Predictions against published hardware runs, and the analytic view; writes the tables of docs/ (about three minutes).
fidelity: $(VENV)/.runtime
	$(BIN)/python examples/published_hardware.py --write docs/fidelity.md
	$(BIN)/python examples/analytic_view.py --write docs/analytic.md

# Pinned by hash in requirements/: the same commit gives the same environment.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("slotgrid needs Python 3.11 or later; choose one with make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.serve: requirements/serve.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/serve.txt
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	touch $@

# The public wheels of the serving stack that the tests read: pinned by hash, never installed.
$(VENV)/.stack: $(wildcard requirements/stack/*.txt) $(VENV)/.dev
	$(BIN)/python -m tests.stacks.wheels
	touch $@

# Not in CI: the whole real scheduler under a virtual clock, 50 plans, exact agreement (docs/rbln.md); then replay and
# calibrate against vLLM's own server with a paced device (docs/measure.md). Linux on x86-64.
# vLLM's own pin is an older torch; only its Python code is used here, so --no-deps.
STACK := .venv-stack
test-stack: $(STACK)/.ready $(VENV)/.runtime
	PYTHONPATH=. $(STACK)/bin/python -m tests.stacks.full_scheduler
	$(BIN)/python -m tests.stacks.replay_on_vllm --server-python $(STACK)/bin/python

$(STACK)/.ready: requirements/test-stack.txt pyproject.toml
	test -x $(STACK)/bin/python || $(PYTHON) -m venv $(STACK)
	$(STACK)/bin/python -m pip install --quiet torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
	$(STACK)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/test-stack.txt
	$(STACK)/bin/python -m pip install --quiet --no-deps -r requirements/build.txt
	$(STACK)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) $(STACK) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
