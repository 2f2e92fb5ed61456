# Two commands on a fresh machine with Python 3.11+: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Small tensors are faster on one thread, and a busy neighbour does not stall it.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test test-integrations test-timm browser wheel lint types docs docs-serve bench format clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "crsam needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra of pyproject.toml, with the versions that we test.
$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

demo: $(VENV)/.lab  ## SGD, SAM and CR-SAM side by side, in a minute
	$(BIN)/crsam demo

test: $(VENV)/.dev  ## all tests
	$(BIN)/python -m pytest -q -n 2

test-integrations: $(VENV)/.dev $(VENV)/.integrations  ## Lightning, Transformers, Accelerate
	$(BIN)/python -m pytest -q -n 2 tests/integrations src/crsam/integrations

# Not in .ci/run: where torchvision comes for the CUDA build of torch alone, it is 5.8 GB and minutes.
TIMM_VENV ?= .venv-timm
$(TIMM_VENV)/.timm: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TIMM_VENV)
	grep -v '^torch==' constraints.txt > $(TIMM_VENV)/constraints.txt
	$(TIMM_VENV)/bin/python -m pip install -q --disable-pip-version-check \
	  -c $(TIMM_VENV)/constraints.txt -e '.[timm]' hypothesis pytest
	@touch $@

test-timm: $(TIMM_VENV)/.timm  ## timm's models, in an environment of their own
	$(TIMM_VENV)/bin/python -m pytest -q tests/lab/models/test_timm.py tests/lab/models/test_timm_itself.py \
	  tests/lab/models/test_safetensors.py

browser:  ## Chromium, in which the report page is tested; by apt, as root
	@command -v chromium || command -v chromium-browser || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } || \
	  { echo "no Chromium: install the package chromium, as root with apt-get or otherwise" >&2; \
	    exit 2; }

wheel: $(BIN)/python  ## build the wheel; try it in an empty environment, first alone, then with the lab
	rm -rf dist
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	PYTHON=$(PYTHON) .ci/wheel dist/*.whl

lint: $(VENV)/.dev  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.dev  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## the site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

docs-serve: $(VENV)/.docs  ## the site, live on localhost
	$(BIN)/mkdocs serve

bench: $(VENV)/.bench  ## cost of a step on this CPU
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/small_nets.py

clean:  ## remove everything that can be made again
	rm -rf $(VENV) $(TIMM_VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
