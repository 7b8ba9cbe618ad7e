# Every target makes the environment it needs from a bare python3 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help explore reproduce test test-fast test-all test-lowest test-newest test-browser test-peers test-wasm coverage atlas explore-static lint bench paper docs docs-serve dist clean
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

explore: $(VENV)/stamp  ## a page in the browser: move a slider, see the law
	$(BIN)/netsor explore

explore-static: .pyodide  ## the explorer as static files that need no server of ours, into explore-static/
	$(BIN)/python docs/_browser.py explore $@
	@echo "$@/index.html"

reproduce: $(VENV)/stamp  ## the paper's experiments, into results/
	$(BIN)/netsor reproduce

# Neighbours stay in one process, so that what a file of tests makes once is made once, until a process has none left.
# One thread of linear algebra in each: there is one process a core. Bytecode is kept, whatever the environment says of it:
# the tests begin many processes, and without it each compiles the library anew.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest
# One process a core: one more takes seconds to import and collect what the others have, which waiting tests do not save.
PARALLEL = -n $(shell $(PYTHON) -c 'import os; print(min(8, os.cpu_count() or 1))') --dist worksteal

# Most of the time of JAX is that of its compiler, which need not optimise here; in test-all it does, as for users.
COMPILED := XLA_FLAGS='--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'

test: $(VENV)/stamp-test  ## every test but the slow ones, on all cores
	$(COMPILED) $(PYTEST) $(PARALLEL)

# The language and its layers; exact programs against literal ones; plans, passes and counts of random numbers; laws.
FAST := tests/language tests/nn tests/laws/test_laws.py tests/laws/test_estimate.py tests/models/test_reduce.py \
	$(addprefix tests/engine/test_, exact.py literal.py counts.py plan.py passes.py condition.py orthogonal.py blocks.py)

test-fast: $(VENV)/stamp-test  ## what one runs between two edits: under a minute on two cores
	$(PYTEST) $(PARALLEL) $(FAST)

test-all: $(VENV)/stamp-test  ## every test
	$(PYTEST) $(PARALLEL) -m 'not peers'

# The lowest versions that pyproject.toml allows, in an environment of their own.
LOWEST := .venv-lowest
$(LOWEST)/stamp: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python tests/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/lowest.txt -e '.[test]'
	@touch $@

# What old versions say of each other's names is not ours to mend, so such warnings are no errors here.
test-lowest: $(LOWEST)/stamp  ## the tests of `make test` with the lowest versions of all dependencies
	$(COMPILED) $(ONE_THREAD) $(LOWEST)/bin/python -m pytest $(PARALLEL) -W ignore::DeprecationWarning

# The newest versions of all dependencies, pre-releases included, in an environment of their own.
NEWEST := .venv-newest
test-newest:  ## the tests of `make test` with the newest versions of all dependencies, pre-releases included
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --pre -e '.[test]'
	$(COMPILED) $(ONE_THREAD) $(NEWEST)/bin/python -m pytest $(PARALLEL)

# Python for a browser, with numpy, scipy and matplotlib: `make docs` puts it into the site if it is there.
.pyodide: docs/_browser.py | $(VENV)/stamp
	$(BIN)/python docs/_browser.py pyodide $@
	@touch $@

test-wasm: .pyodide $(VENV)/stamp-test  ## the library in Pyodide under node, which must be installed: the same numbers
	$(ONE_THREAD) $(BIN)/python -m pytest -o addopts='-q --strict-markers' -o python_files='wasm_*.py' tests/wasm

test-browser: $(VENV)/stamp-browser .pyodide docs explore-static  ## the explorer, the documentation and a notebook in Chromium (CHROMIUM=PATH, if it is elsewhere)
	$(BIN)/python -m pytest -o addopts='-q --strict-markers' -o python_files='browser_*.py' tests/browser

test-peers: $(VENV)/stamp-peers  ## laws against real networks by transformers and PyTorch
	$(BIN)/python -m pytest -o addopts='-q --strict-markers -s' tests/peers

# Classes that are in docs/coverage.csv with these versions are not tried again.
coverage: $(VENV)/stamp-peers  ## which classes of transformers are read, into docs/coverage.md; an interrupted run resumes
	$(ONE_THREAD) $(BIN)/python -m tests.peers.coverage

# Models that have a file in docs/atlas are not measured again.
atlas: $(VENV)/stamp-peers  ## open models at initialisation, into docs/atlas; an interrupted run resumes
	$(ONE_THREAD) $(BIN)/python docs/_atlas.py measure

lint: $(VENV)/stamp-lint  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The short form, paper/paper.md, is not made here: JOSS compiles it.
paper: $(VENV)/stamp-paper  ## the long paper with all its numbers and figures, paper/exactly.pdf; an interrupted run resumes
	$(ONE_THREAD) $(BIN)/python paper/_numbers.py
	$(BIN)/python -c 'import typst; typst.compile("paper/exactly.typ", output="paper/exactly.pdf")'

bench: $(VENV)/stamp  ## times and random numbers, into bench/results
	$(BIN)/python bench/bench.py

docs: $(VENV)/stamp-docs  ## the documentation, into site/; its formulas are compiled where pdflatex is installed
	$(BIN)/python docs/_formulas.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

docs-serve: docs  ## the documentation on this machine, PORT=8000 unless given
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site $(or $(PORT),8000)

# Each is installed in an environment of its own and used from a folder that knows nothing of the sources.
CLEAN := .venv-dist
dist: $(VENV)/stamp-test  ## the wheel and the archive of the sources, into dist/, each used in a clean environment
	rm -rf dist
	$(BIN)/python -m hatchling build
	for file in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear $(CLEAN) && \
		$(CLEAN)/bin/python -m pip install --quiet --disable-pip-version-check "$$file" && \
		(bin="$$PWD/$(CLEAN)/bin" && cd / && "$$bin/netsor" --version && "$$bin/netsor" law --heads 2 --at 0.5 && \
			"$$bin/python" -c 'import netsor as ns; print(ns.paper.layer().check().verdict, len(ns.models.names()))') || exit 1; \
	done

clean:  ## remove what the targets above made
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(CLEAN) dist site explore-static .pyodide results .pytest_cache .mypy_cache .ruff_cache .hypothesis
