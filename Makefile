# Every target makes .venv when it is missing and installs what it needs. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := setup.py pyproject.toml $(wildcard caffelite/*.p?[xd] caffelite/program/*.p?[xd] caffelite/_kernels/*.p* caffelite/_kernels/*/*)

.PHONY: spiral test lint sanitize bench clean
.DELETE_ON_ERROR:

spiral: .venv/plot
	$(BIN)/caffelite spiral --output spiral.png

# In a process for each core; the threads of one do not spin while they wait for those of another.
test: .venv/test,lint
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n auto

lint: .venv/test,lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH=$(CURDIR)/$(BIN):$$PATH cython-lint caffelite
	$(BIN)/mypy

sanitize: .venv/test,lint
	$(BIN)/python tests/sanitize.py

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
	$(BIN)/python benchmarks/files.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/exported.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/mpi.py

clean:
	rm -rf .venv build *.egg-info caffelite/*.so caffelite/*/*.so caffelite/*.c caffelite/*/*.c

# .venv/EXTRAS is there when caffelite, built from the present sources, is installed with them.
.venv/%: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv
