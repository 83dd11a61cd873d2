# `make dream` and `make test` build the virtual environment .venv themselves; run again, they reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt
SOURCES := dreamenvs training examples tests
export OMP_NUM_THREADS ?= 1

.PHONY: help dream test format clean
.DEFAULT_GOAL := help

help:
	@echo "make dream   train an agent inside a bundled dream, then play the real game (examples/train_in_a_dream.py)"
	@echo "make test    every check: ruff, mypy, import-linter, pytest"
	@echo "make format  put the code into its format"
	@echo "make clean   remove the virtual environment, caches and build products"

dream: $(VENV)/.for-dream
	$(BIN)/python examples/train_in_a_dream.py

test: $(VENV)/.for-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --strict dreamenvs
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n auto --dist worksteal

format: $(VENV)/.for-test
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.for-dream: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[sb3,minatar,train]"
	@touch $@

$(VENV)/.for-test: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e ".[test,train,sb3,atari,minatar,crafter,minari,dmc,ray]"
	@touch $@
