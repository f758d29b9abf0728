# Trainyard's commands. `make rehearsal` and `make test` do all set-up themselves; a second run reuses it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup rehearsal test lint format schemas clean

PYTHON ?= $(firstword $(wildcard /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11) python3)
STACK ?= local
NODES ?=
FAULT ?=
ENGINE ?= mocks
BACKEND ?= process
BAKE ?=
UV_VERSION := $(shell sed -n 's/^uv==\([^ ]*\).*/\1/p' trainyard/node/requirements.txt)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
REQUIREMENTS := requirements.txt infra/requirements.txt trainyard/node/requirements.txt trainer/requirements.txt trainer/prepare/requirements.txt constraints.txt

help: ## This list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## The virtual environment, with everything pinned

# TORCH_INDEX: an index or wheelhouse to take torch from, e.g. one with CPU builds (the default one is CUDA's, 5 GB).
$(STAMP): $(REQUIREMENTS)
	@test ! -L $(VENV) || { echo "$(VENV) is a link to $$(readlink -f $(VENV)), older than the requirements here: set up anew where it is, or remove the link" >&2; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) -V): uv, then the pinned packages (torch with CUDA is 5 GB; TORCH_INDEX names another source)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode $(if $(TORCH_INDEX),$(if $(filter http://% https://%,$(TORCH_INDEX)),--index,--find-links) $(TORCH_INDEX) --index-strategy unsafe-best-match) -r requirements.txt -c constraints.txt
	@touch $@

rehearsal: $(STAMP) ## The whole road, offline: STACK=local, NODES= to override the stack's, FAULT= faults, ENGINE=pulumi, BACKEND=nspawn, BAKE=1
	@$(BIN)/python -m rehearsal run --stack '$(STACK)' --engine '$(ENGINE)' --backend '$(BACKEND)' $(if $(filter-out 0,$(BAKE)),--bake) $(if $(NODES),--nodes '$(NODES)') $(foreach fault,$(FAULT),--fault '$(fault)')

test: $(STAMP) ## Every test, on two cores at most
	@$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=2

lint: $(STAMP) ## ruff, mypy (strict), yamllint, ansible-lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/yamllint --strict .
	@ANSIBLE_LIBRARY=playbooks/library PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q playbooks

format: $(STAMP) ## Let ruff write the format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

schemas: $(STAMP) ## JSON Schemas of the contract into build/schemas
	@$(BIN)/python -m trainyard.models.schemas build/schemas

clean: ## Remove what was built, not the virtual environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache
