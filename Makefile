# The README's two commands, `make demo` and `make test`, do all their set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help demo test test-long test-changed lint format bench docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## sample from the bundled models, original sampler beside a fast one
	$(BIN)/python examples/demo.py --out demo

test: $(INSTALLED)  ## the tests (a few minutes)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not long"

test-long: $(INSTALLED)  ## the tests that take longer
	$(BIN)/python -m pytest -m long

test-changed: $(INSTALLED)  ## the long tests of what changed since the last commit, 20 minutes of them at most
	$(BIN)/python tools/changed_tests.py --minutes 20

lint: $(INSTALLED)  ## ruff, mypy (strict), layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)  ## format and fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(INSTALLED)  ## the documentation site, into site/; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(INSTALLED)  ## what the loop costs beside the network
	$(BIN)/bfn bench

clean:  ## remove the virtual environment and outputs
	rm -rf $(VENV) demo site
