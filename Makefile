# `make rehearsal` and `make test` create the virtual environment if it is missing or older than the requirements.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup rehearsal chaos test test-all lint format locks wheels audit sbom schemas clean

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
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHEELS := trainer/wheels
UPGRADE ?=
UV_INSTALL = $(BIN)/uv pip install --system-certs --python $(BIN)/python --compile-bytecode
REQUIREMENTS := requirements.txt
# With hashes for the default index only: TORCH_INDEX has other builds of these packages.
TORCH := torch|torchvision|triton|cuda-[a-z]+|nvidia-[cn][a-z0-9-]+
# Install from a lock: the SHA-256 of each wheel is verified, and no build runs.
LOCKED := --require-hashes --only-binary :all:
# `pulumi install` upgrades these without hashes. They are installed from the lock: pip changes nothing.
define PIN_INSTALLERS
grep -oE '^(pip|setuptools|wheel)==[^ ]+' requirements.txt > $(VENV)/pip-constraints.txt; \
printf '[install]\nconstraint = %s\n' '$(CURDIR)/$(VENV)/pip-constraints.txt' > $(VENV)/pip.conf
endef

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## Create the virtual environment with pinned packages and the command trainyard

# TORCH_INDEX: package index or folder of wheels for torch, e.g. with CPU builds (the default build is CUDA, 5 GB). The
# hashes of torch and of the CUDA packages are not verified then.
$(STAMP): $(REQUIREMENTS)
	@test ! -L $(VENV) || { echo "$(VENV) is a link to $$(readlink -f $(VENV)) and older than the requirements: run make setup there, or remove the link" >&2; exit 2; }
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): install Python 3.11 or newer, or select another: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python's venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) -V): uv, then the locked packages (torch with CUDA has 5 GB; TORCH_INDEX selects another source)"
	@$(PYTHON) -m venv --clear $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.txt | $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(LOCKED) -r /dev/stdin
ifdef TORCH_INDEX
	sed -E '/^($(TORCH))==/,/[^\\]$$/d' requirements.txt | $(UV_INSTALL) --no-deps $(LOCKED) -r -
	$(UV_INSTALL) $(if $(filter http://% https://%,$(TORCH_INDEX)),--index,--find-links) $(TORCH_INDEX) --index-strategy unsafe-best-match $$(grep -oE '^(torch|torchvision)==[^ ]+' requirements.txt)
else
	$(UV_INSTALL) $(LOCKED) -r requirements.txt
endif
	@$(UV_INSTALL) --quiet --no-deps --no-build-isolation --editable .
	@$(PIN_INSTALLERS)
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

locks: $(STAMP) ## Write the locks of all Python packages from requirements.in: UPGRADE=1 takes the newest versions
	@$(BIN)/python -m tools.locks $(if $(UPGRADE),--upgrade)

# The same input gives the same wheel, whose hash is in the locks. $(WHEELS)/sources.txt has the hash of the input.
wheels: $(STAMP) ## Build the wheels of packages that publish only source distributions, to trainer/wheels
	@rm -rf build/sources && mkdir -p build/sources
	@$(BIN)/python -m pip download --quiet --no-deps --no-build-isolation --require-hashes --no-binary :all: --dest build/sources --requirement $(WHEELS)/sources.txt
	@umask 022; SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir --wheel-dir $(WHEELS) build/sources/*

AUDIT_VENV := build/audit-venv

$(AUDIT_VENV)/.installed: tools/audit/requirements.txt | $(STAMP)
	@$(PYTHON) -m venv --clear $(AUDIT_VENV)
	@$(BIN)/uv pip install --system-certs --quiet --python $(AUDIT_VENV)/bin/python $(LOCKED) -r $<
	@touch $@

audit: $(STAMP) $(AUDIT_VENV)/.installed ## Check code with bandit and resources with checkov; fail on findings not in tools/audit/accepted.yaml
	@$(BIN)/python -m tools.audit $(AUDIT_VENV)/bin

sbom: $(AUDIT_VENV)/.installed ## Write the software bill of materials (CycloneDX) of a release to build/sbom.json
	@$(AUDIT_VENV)/bin/cyclonedx-py requirements rehearsal/requirements.txt --pyproject pyproject.toml --output-reproducible --of JSON --outfile build/sbom.json

schemas: $(STAMP) ## Write JSON Schemas of the models to build/schemas
	@$(BIN)/python -m trainyard.models.schemas build/schemas

clean: ## Remove build outputs and caches, not the virtual environment
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache
