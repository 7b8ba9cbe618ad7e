# Every target makes the environment it needs from a bare python3 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help reproduce test test-all test-peers lint bench docs clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

# One stamp for each set of optional dependencies; it is made again when pyproject.toml changes.
$(VENV)/stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/stamp-%: $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

reproduce: $(VENV)/stamp  ## the paper's experiments, into results/
	$(BIN)/netsor reproduce

test: $(VENV)/stamp-test  ## every test but the slow ones
	$(BIN)/python -m pytest

test-all: $(VENV)/stamp-test  ## every test
	$(BIN)/python -m pytest -m 'not peers'

test-peers: $(VENV)/stamp-peers  ## laws against real networks by transformers and PyTorch
	$(BIN)/python -m pytest -o addopts='-q --strict-markers -s' tests/peers

lint: $(VENV)/stamp-lint  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/stamp  ## times and random numbers, into bench/results
	$(BIN)/python bench/bench.py

docs: $(VENV)/stamp-docs  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:  ## remove what the targets above made
	rm -rf $(VENV) site results .pytest_cache .mypy_cache .ruff_cache .hypothesis
