# For developers. `make test` creates its own environment and runs what CI runs.
ENV := .venv
BIN := $(ENV)/bin
PYTHON ?= python3

.PHONY: test lint checks types pytest nightly lower-bounds env benchmarks faults reliability fuzz evals dist pictures clean

# Keep bytecode: the tests start thousands of Python processes, and each would compile
# all of its imports.
unexport PYTHONDONTWRITEBYTECODE

# The checks run in parallel with the tests, and their output is printed at the end. They
# use one core while the tests are compiled on the other.
test: env
	@output=$$(mktemp); trap 'rm -f "$$output"' EXIT; \
	$(MAKE) --no-print-directory lint >"$$output" 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory pytest; failed=$$?; \
	wait $$lint || failed=1; cat "$$output"; exit $$failed

env: $(ENV)/.made

# uv takes a tenth of pip's time. Use pip if only pip has an index configured.
$(ENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[test]' \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

lint: checks types

types: env
	$(BIN)/mypy

checks: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x install.sh hooks/stepper hooks/plugin hooks/shell bin/stepper .ci/run

# The first line compiles the tests once, instead of once in each worker. worksteal: an
# idle worker takes tests from a busy one.
pytest: env
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	$(BIN)/python -m pytest -n 3 --dist worksteal

# All tests, with the slow ones: hangs, floods, memory limits, the soak test, other
# versions, Python 3.9, the whole corpus, the real client, JupyterLab. Compares every cell
# with nbclient three times, to find races.
nightly: env
	ORACLE_TIMES=3 $(BIN)/python -m pytest -m '' -n 2 --dist loadfile

# All tests on the lowest versions that pyproject.toml allows. PYTHON=python3.10 uses the
# lowest Python, too.
lower-bounds:
	$(PYTHON) -m venv $(ENV)-low
	$(ENV)-low/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(ENV)-low/bin/uv pip install --quiet --python $(ENV)-low/bin/python --resolution lowest-direct --editable '.[test]'
	$(ENV)-low/bin/python -m pytest -m '' -W default -n 2 --dist loadfile --ignore tests/realclient --ignore tests/test_install.py

# What steps, large notebooks, starts, many notebooks and bursts cost, compared with lower
# bounds: docs/development/benchmarks.md
benchmarks: env
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/notebook_size.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/concurrent_steps.py
	$(BIN)/python benchmarks/message_end.py
	$(BIN)/python benchmarks/floods.py "100 MB of text" "display updates"
	$(BIN)/python benchmarks/idle_hooks.py
	$(BIN)/python benchmarks/mcp_http.py
	$(BIN)/python benchmarks/tokens.py

# How often a report has the fact that the fix needs: docs/development/reports.md
faults: env
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults --folder unseen
	$(BIN)/python -m tests.faults --folder fresh
	$(BIN)/python -m tests.faults --folder blind
	$(BIN)/python -m tests.faults --folder later
	$(BIN)/python -m tests.faults --folder states

# Injected faults, floods of output, two thousand cells: docs/development/reliability.md
reliability: env
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/floods.py --rounds 3
	$(BIN)/python benchmarks/soak.py

# Fuzz tests with twenty thousand examples instead of some hundred.
fuzz: env
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m "" tests/test_fuzz.py

# Measure the skills with a real model: `claude plugin eval` uses your API key.
# See docs/development/evals.md
evals: env
	$(BIN)/python benchmarks/evals.py

# Build the sdist and the wheel of a release in dist/ and check them with twine.
# tests/test_wheel_install.py checks their contents and versions.
dist: env
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	rm -f dist/.gitignore
	$(BIN)/uv tool run twine check --strict dist/*

# Draw the pictures in docs/ from real sessions.
pictures: env
	PICTURES=1 $(BIN)/python -m pytest -m '' tests/test_view.py -k screenshots
	for scene in session statusline; do $(BIN)/python docs/pictures/session.py $$scene; done

clean:
	rm -rf dist $(ENV) $(ENV)-low .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
