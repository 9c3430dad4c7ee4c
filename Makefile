# The doors of this repository. `make demo` and `make test` set everything up by themselves.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test check format lint types contracts unit interop bench jars requirements clean

help:                  ## what one can do here
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22

setup: $(STAMP)        ## the virtual environment in .venv, from pinned, hashed requirements

$(STAMP): requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "error[python-missing]: Penstock needs Python 3.11, 3.12 or 3.13; none found in PATH. Name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): a few minutes the first time (PySpark alone is 400 MB)."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps --no-build-isolation \
		$$(true) -r <($(BIN)/python scripts/pick_requirements.py requirements/dev.txt setuptools hatchling packaging pathspec pluggy trove-classifiers tomlkit)
	@$(BIN)/python -m pip install --quiet --require-hashes --no-deps --no-build-isolation -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
