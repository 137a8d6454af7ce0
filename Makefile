# Everything that a person or CI runs; plain pip, one virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo setup test lint types bench docs clean

demo: $(VENV)/.core  ## The whole line on a shipped model, core only
	$(BIN)/dovetail demo

setup: $(VENV)/.all  ## A usable .venv/bin/dovetail with every extra

# loadgroup: a worker gets one test at a time, or a whole file where that shares a fixture (tests/conftest.py). No worker
# waits while another has a long file, and nothing is made twice. In the order of collection, which has the long tests first.
test: lint types  ## Everything, with a coverage floor
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder --cov --cov-report=term:skip-covered

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev  ## Figures, as ratios from one run
	OMP_NUM_THREADS=1 $(BIN)/python -m bench

docs: $(VENV)/.core  ## What is generated from the code
	$(BIN)/python -m dovetail.rule_docs docs/rules

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable .
	touch $@

# torch is pinned and goes first: any other spelling pulls several GB of CUDA packages.
$(VENV)/.all: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[all]'
	touch $@

$(VENV)/.dev: $(VENV)/.all
	$(PIP) --editable '.[all,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov
