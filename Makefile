# The commands that developers and CI run; plain pip, one virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo setup test lint types bench docs clean

demo: $(VENV)/.core  ## Run the whole pipeline on a shipped model; installs only the core
	$(BIN)/dovetail demo

setup: $(VENV)/.all  ## Install .venv/bin/dovetail with all extras

# loadgroup: a worker gets one test at a time, or a whole file where that shares a fixture (tests/conftest.py). No worker
# waits while another has a long file, and nothing is made twice. In the order of collection, which has the long tests first.
test: lint types  ## Lint, type-check and run the whole test suite; fails below the coverage limit
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder --cov --cov-report=term:skip-covered

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev  ## Run the benchmarks, which print ratios from one run
	OMP_NUM_THREADS=1 $(BIN)/python -m bench

docs: $(VENV)/.core  ## Generate the pages of docs/rules from the code
	$(BIN)/python -m dovetail.rule_docs docs/rules

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable .
	touch $@

# torch is pinned and installed first: otherwise pip installs several GB of CUDA packages.
$(VENV)/.all: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[all]'
	touch $@

$(VENV)/.dev: $(VENV)/.all
	$(PIP) --editable '.[all,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
