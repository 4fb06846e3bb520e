# The few commands. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
# What to give pip for torch; several words may stand here.
TORCH ?= torch
BIN := .venv/bin
# The package that the demo reviews: asyncio of this Python.
INPUT ?= $(shell $(BIN)/python -c 'import asyncio, os; print(os.path.dirname(asyncio.__file__))')
BENCHMARKS ?= $(filter-out __init__ common,$(basename $(notdir $(wildcard benchmarks/*.py))))
ARGS ?= --quick

.PHONY: help demo test check bench clean FORCE

help:
	@echo 'make demo    review a Python package with a swarm on the embedded model  [INPUT=folder]'
	@echo 'make test    run every test'
	@echo 'make check   lint, check the types twice, and run the tests that need no model'
	@echo 'make bench   run the benchmarks beside their peers  [BENCHMARKS="engine ..." ARGS="--quick"]'
	@echo 'make clean   remove caches and build outputs; .venv and the fetched model stay'
	@echo
	@echo 'The first of them makes .venv, with torch by "pip install $$(TORCH)". For another build:'
	@echo '  make test TORCH=torch==2.13.0'
	@echo '  make test TORCH="torch --index-url https://download.pytorch.org/whl/cpu"    (small, no GPU)'

demo: .venv/.runtime
	$(BIN)/swarmkv run examples/code_review.py "$(INPUT)"

test: .venv/.dev
	$(BIN)/python -m swarmkv.kvcore.model pull
	$(BIN)/pytest

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/pytest -m "not model"

bench: .venv/.runtime
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(ARGS); done

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is written after its step has succeeded, so that an interrupted one is done again.
.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'swarmkv needs Python 3.11 or newer: install it, or name it with PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo 'This Python cannot make virtual environments: sudo apt-get install python3-venv'; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first that knows --group
	@touch $@

# Holds the choice of torch; rewritten, and so newer than .runtime, only where that has changed.
.venv/.torch: .venv/.created FORCE
	@echo '$(TORCH)' | cmp --silent - $@ || echo '$(TORCH)' > $@

.venv/.runtime: pyproject.toml .venv/.torch
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@
