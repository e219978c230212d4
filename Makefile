# Every target makes .venv when it is missing and installs what it needs. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := setup.py pyproject.toml $(wildcard caffelite/core/*.p?[xd] caffelite/program/*.p?[xd] caffelite/_kernels/*.p* caffelite/_kernels/*/*)

.PHONY: spiral test lint ruff cython-lint mypy docs sanitize wheel bench clean
.DELETE_ON_ERROR:

spiral: .venv/plot
	$(BIN)/caffelite spiral --output spiral.png

# In a process for each core; the threads of one do not spin while they wait for those of another.
test: .venv/test,lint
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n auto --dist worksteal

lint: mypy cython-lint ruff

ruff: .venv/test,lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

cython-lint: .venv/test,lint
	PATH=$(CURDIR)/$(BIN):$$PATH cython-lint caffelite

mypy: .venv/test,lint
	$(BIN)/mypy

# The site, in docs/_build/html/index.html: every program on it is run, and a warning is an error.
docs: .venv/docs
	$(BIN)/sphinx-build -W --keep-going -j auto docs docs/_build/html

sanitize: .venv/test,lint
	$(BIN)/python tests/sanitize.py

wheel: .venv/test,wheel
	$(BIN)/python tests/wheels.py

bench: .venv/bench
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/convolutions.py --profile
	$(BIN)/python benchmarks/sequences.py --profile
	$(BIN)/python benchmarks/sequences.py --memory
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/elementary.py --every 1000
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/autograd.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/threshold.py
	$(BIN)/python benchmarks/busy.py
	$(BIN)/python benchmarks/files.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/exported.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/live.py
	$(BIN)/python benchmarks/playground.py
	$(BIN)/python benchmarks/mpi.py

clean:
	rm -rf .venv build dist docs/_build docs/gallery *.egg-info caffelite/*/*.so caffelite/*/*.c

# .venv/EXTRAS is there when caffelite is installed with them, for which nothing is compiled again.
.venv/%: .venv/built
	CAFFELITE_BUILT=1 $(PIP) --no-build-isolation --editable '.[$*]'
	@touch $@

# Here, and only here, the present sources are compiled: once for all targets, and only the modules that have changed.
.venv/built: $(SOURCES) | $(BIN)/python
	$(PIP) 'setuptools>=77' 'cython>=3.1' 'numpy>=2.0'
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv
