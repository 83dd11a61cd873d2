# `make dream` and `make test` build the virtual environment .venv themselves; run again, they reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt
SOURCES := dreamenvs training examples tests
PYTEST = $(BIN)/python -m pytest -n auto --dist worksteal
# Files say themselves that they belong here, so that this stays true when they move.
PORTABLE = $(PYTEST) -q --durations=10 -m "portable and not slow" $(shell grep -rl --include='test_*.py' 'mark\.portable' tests)
QUICK := tests/contracts tests/reference
CHANGED = $(shell git diff --name-only --diff-filter=d HEAD -- 'tests/**/test_*.py'; \
	git ls-files --others --exclude-standard -- 'tests/**/test_*.py')
export OMP_NUM_THREADS ?= 1
# Threads that wait shall sleep: where there are more of them than cores, spinning holds up those that work.
export OMP_WAIT_POLICY ?= passive

.PHONY: help dream test test-portable test-wheel check format clean
.DEFAULT_GOAL := help

help:
	@echo "make dream   train an agent inside a bundled dream, then play the real game (examples/train_in_a_dream.py)"
	@echo "make check   what a commit needs, in less than a minute: ruff, mypy, import-linter, quick and changed tests"
	@echo "make test    every check: ruff, mypy, import-linter, pytest"
	@echo "make test-portable   numerics and the bits of rows, as on other processors and with other numbers of threads"
	@echo "make test-wheel  build the wheel and use it in a fresh environment outside the repository"
	@echo "make format  put the code into its format"
	@echo "make clean   remove the virtual environment, caches and build products"

dream: $(VENV)/.for-dream
	$(BIN)/python examples/train_in_a_dream.py

.PHONY: lint
lint: $(VENV)/.for-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --strict dreamenvs training examples
	$(BIN)/lint-imports

test: lint
	$(PYTEST)

check: lint
	$(PYTEST) -q -m "not slow" $(sort $(QUICK) $(CHANGED))

# Every bundled dream is in each of the first three, seen in another way; what many threads may change, is in the others.
ROWS := bits or notice or row_independence or does_not_depend or depend_on_its or forked
test-portable: $(VENV)/.for-test
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
		$(PORTABLE) -k "not conforms_in_every_mode or tokens"
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(PORTABLE) -k "not conforms_in_every_mode or rgb"
	$(PORTABLE) --without-onednn -k "not conforms_in_every_mode or latent"
	$(PORTABLE) --threads 3 -k "$(ROWS) or number_of_rows or (conforms_in_every_mode and latent and GITSTORM)"
	$(PORTABLE) --threads 8 -k "$(ROWS) or pixels_and_features or (conforms_in_every_mode and rgb and STEPVQ-Mi)"
	$(PORTABLE) --threads 16 -k "$(ROWS) or (conforms_in_every_mode and tokens and REM)"

test-wheel: $(VENV)/.for-test
	.ci/test-wheel $(BIN)/python

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
