# The commands that developers and CI run; plain pip, one virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Without bytecode files every process compiles our modules again, and each test worker all tests: 8 s of CPU time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo setup test coverage browser lint types bench docs clean

demo: $(VENV)/.core  ## Run the whole pipeline on a shipped model; installs only the core
	$(BIN)/dovetail demo

setup: $(VENV)/.all  ## Install .venv/bin/dovetail with all extras

# loadgroup: a worker gets one test at a time, or a whole file where that shares a fixture (tests/conftest.py). No worker
# waits while another has a long file, and nothing is made twice. In the order of collection, which has the long tests first.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder

test: lint types browser  ## Lint, type-check and run the whole test suite
	$(PYTEST)

coverage: lint types browser  ## The same, slower; fails below the coverage limit
	$(PYTEST) --cov --cov-report=term:skip-covered

# Without root rights the tests in a browser are skipped; with CI=true that is a failure.
browser:  ## Install Chromium, in which the report page is tested, from the Debian package if it is missing
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update --quiet && DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends chromium; \
	else echo "chromium is not installed: the tests of the report page in a browser are skipped"; fi

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
