# `make demo` and `make test` do all their set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo test test-core test-long test-changed house lint format bench docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## sample from the bundled models with the original sampler and with a fast one
	$(BIN)/python examples/demo.py --out demo

test: $(INSTALLED)  ## run the tests (about 6 minutes)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not long"

test-core: $(INSTALLED)  ## run the tests of the core (under 30 seconds)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not long" tests/unit/core

test-long: $(INSTALLED)  ## run the tests that take longer
	$(BIN)/python -m pytest -m long

test-changed: $(INSTALLED)  ## run the long tests of changed files, at most 20 minutes of them
	$(BIN)/python tools/changed_tests.py --minutes 20

lint: $(INSTALLED)  ## run ruff, mypy (strict) and the check of the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

house: $(INSTALLED)  ## print the budgets of the code base, each figure beside its limit
	$(BIN)/python tools/house.py

format: $(INSTALLED)  ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(INSTALLED)  ## build the documentation into site/ and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(INSTALLED)  ## measure what sampling costs beside the network
	$(BIN)/bfn bench

clean:  ## remove the virtual environment and outputs
	rm -rf $(VENV) demo site
