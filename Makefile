# Development: `make test` makes its own environment and does all that CI does.
ENV := .venv
BIN := $(ENV)/bin
PYTHON ?= python3

.PHONY: test lint checks types pytest nightly lower-bounds env benchmarks faults reliability fuzz evals dist pictures clean

# Bytecode is kept, whatever the caller's environment says: of some thousand Pythons each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# The types take as long as all other checks and one core: they are checked beside the tests, and what is said of them stands
# below those.
test: env
	@said=$$(mktemp); trap 'rm -f "$$said"' EXIT; $(MAKE) --no-print-directory types >"$$said" 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory checks pytest; failed=$$?; \
	wait $$types || failed=1; cat "$$said"; exit $$failed

env: $(ENV)/.made

# uv takes a tenth of pip's time; where only pip is told of an index, pip does it.
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

# Workers who take tests from each other when they have none left.
pytest: env
	$(BIN)/python -m pytest -n 3 --dist worksteal

# All tests, those that are slow by nature too: hangs, floods, memory to the last, the soak, versions, Python 3.9, the whole
# corpus, all of the real client and of JupyterLab, every cell of the notebooks three times beside nbclient, for races.
nightly: env
	ORACLE_TIMES=3 $(BIN)/python -m pytest -m '' -n 2 --dist loadfile

# The same engine on the lowest versions that pyproject.toml allows, PYTHON=python3.10 for the lowest Python too.
lower-bounds:
	$(PYTHON) -m venv $(ENV)-low
	$(ENV)-low/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(ENV)-low/bin/uv pip install --quiet --python $(ENV)-low/bin/python --resolution lowest-direct --editable '.[test]'
	$(ENV)-low/bin/python -m pytest -m '' -W default -n 2 --dist loadfile --ignore tests/realclient --ignore tests/test_install.py

# What a step, growth, a start, many notebooks and bursts cost, each beside its floors: docs/development/benchmarks.md
benchmarks: env
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/batch.py
	$(BIN)/python benchmarks/floods.py "100 MB of text" "display updates"
	$(BIN)/python benchmarks/quiet.py
	$(BIN)/python benchmarks/tokens.py

# How often a report has the fact that the fix needs: docs/development/reports.md
faults: env
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults --folder unseen
	$(BIN)/python -m tests.faults --folder fresh
	$(BIN)/python -m tests.faults --folder blind
	$(BIN)/python -m tests.faults --folder later

# What is injected, what survives, what floods cost, two thousand cells: docs/development/reliability.md
reliability: env
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/floods.py --rounds 3
	$(BIN)/python benchmarks/soak.py

# Twenty thousand examples of what may come in, instead of some hundred.
fuzz: env
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m "" tests/test_fuzz.py

# The skills with a real model, by the client's own `claude plugin eval`, which takes your key: docs/development/evals.md
evals: env
	$(BIN)/python benchmarks/evals.py

# What a release uploads, in dist/: sdist and wheel, looked over by twine. What they hold, and that versions agree: tests/test_wheel_install.py
dist: env
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	rm -f dist/.gitignore
	$(BIN)/uv tool run twine check --strict dist/*

# The pictures in docs/, from real sessions: docs/view.md
pictures: env
	PICTURES=1 $(BIN)/python -m pytest -m '' tests/test_view.py -k pictures
	for scene in session statusline; do $(BIN)/python docs/pictures/session.py $$scene; done

clean:
	rm -rf dist $(ENV) $(ENV)-low .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
