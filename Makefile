# `make rehearsal` and `make test` create the virtual environment if it is missing or older than the requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup rehearsal chaos test test-all lint format schemas clean

PYTHON ?= $(firstword $(wildcard /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11) python3)
STACK ?= local
NODES ?=
FAULT ?=
SET ?=
DATA ?=
MODEL ?=
ENGINE ?= mocks
BACKEND ?= process
BAKE ?=
PREVIEW ?=
KEEP ?=
UV_VERSION := $(shell sed -n 's/^uv==\([^ ]*\).*/\1/p' trainyard/node/requirements.txt)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
REQUIREMENTS := requirements.txt infra/requirements.txt trainyard/node/requirements.txt trainer/requirements.txt trainer/prepare/requirements.txt rehearsal/requirements.txt trainyard/node/constraints.txt

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## Create the virtual environment with pinned packages and the command trainyard

# TORCH_INDEX: package index or folder of wheels for torch, e.g. with CPU builds (the default build is CUDA, 5 GB).
$(STAMP): $(REQUIREMENTS)
	@test ! -L $(VENV) || { echo "$(VENV) is a link to $$(readlink -f $(VENV)) and older than the requirements: run make setup there, or remove the link" >&2; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): install Python 3.11 or newer, or select another: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) -V): uv, then the pinned packages (torch with CUDA has 5 GB; TORCH_INDEX selects another source)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --system-certs --python $(BIN)/python --compile-bytecode $(if $(TORCH_INDEX),$(if $(filter http://% https://%,$(TORCH_INDEX)),--index,--find-links) $(TORCH_INDEX) --index-strategy unsafe-best-match) -r requirements.txt -c trainyard/node/constraints.txt
	@$(BIN)/uv pip install --system-certs --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

rehearsal: $(STAMP) ## Rehearse a stack offline: STACK=local, NODES=, FAULT=, ENGINE=pulumi, BACKEND=nspawn, BAKE=1, PREVIEW=1, KEEP=1, SET=key=value, DATA=folder, MODEL=folder
	@$(BIN)/python -m rehearsal run --stack '$(STACK)' --engine '$(ENGINE)' --backend '$(BACKEND)' $(if $(filter-out 0,$(BAKE)),--bake) $(if $(filter-out 0,$(PREVIEW)),--preview) $(if $(filter-out 0,$(KEEP)),--keep) $(if $(NODES),--nodes '$(NODES)') $(if $(DATA),--data '$(DATA)') $(if $(MODEL),--model '$(MODEL)') $(foreach fault,$(FAULT),--fault '$(fault)') $(foreach change,$(SET),--set '$(change)')

SEED ?= 1
MINUTES ?= 10
PERIOD ?= 120
STEPS ?=

chaos: $(STAMP) ## Rehearse a stack with random faults: SEED=1, MINUTES=10, PERIOD=120 (seconds), STACK=local, STEPS=, SET=key=value
	@$(BIN)/python -m rehearsal chaos --stack '$(STACK)' --seed '$(SEED)' --minutes '$(MINUTES)' --period '$(PERIOD)' --backend '$(BACKEND)' $(if $(STEPS),--steps '$(STEPS)') $(foreach change,$(SET),--set '$(change)')

PYTEST := $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=2

test: $(STAMP) ## Run the fast tests: unit, graph, emulator, one rehearsal
	@$(PYTEST) -m "not slow"

test-all: $(STAMP) ## Run all tests, including distributed, end-to-end, booted and browser tests
	@$(PYTEST)

lint: $(STAMP) ## Run ruff, mypy, import-linter, the vocabulary lint, yamllint and ansible-lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.lint.vocabulary
	@$(BIN)/yamllint --strict .
	@ANSIBLE_LIBRARY=playbooks/library PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q playbooks

format: $(STAMP) ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

schemas: $(STAMP) ## Write JSON Schemas of the models to build/schemas
	@$(BIN)/python -m trainyard.models.schemas build/schemas

clean: ## Remove build outputs and caches, not the virtual environment
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache
