# Development: `make test` makes its own environment and does all that CI does.
ENV := .venv
BIN := $(ENV)/bin
PYTHON ?= python3

.PHONY: test lint pytest env benchmarks clean

test: lint pytest

env: $(ENV)/.made

$(ENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck install.sh hooks/stepper .ci/run

pytest: env
	$(BIN)/python -m pytest

benchmarks: env
	$(BIN)/python benchmarks/step.py

clean:
	rm -rf $(ENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
