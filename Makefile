# Every target makes .venv when it is missing and installs what it needs. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
# Python compiles a module when it is first imported. If this variable forbids it to keep the result, each of the tests'
# many processes compiles everything that it imports.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off --no-compile
SOURCES := setup.py pyproject.toml $(wildcard caffelite/core/*.p?[xd] caffelite/program/*.p?[xd] caffelite/_kernels/*.p?[xd] caffelite/_kernels/bindings/* caffelite/_kernels/loops/*) caffelite/_kernels/operations.py caffelite/_kernels/generate.py

# An environment keeps its Python, so another one, as in `make PYTHON=python3.12`, would be ignored. Python with and
# without its lock may have the same version, but their compiled modules have other names.
VERSION := -c 'import platform, sysconfig; print(platform.python_version(), sysconfig.get_config_var("SOABI"))'
ifeq ($(origin PYTHON)$(wildcard $(BIN)/python),command line$(BIN)/python)
ifneq ($(shell $(PYTHON) $(VERSION)),$(shell $(BIN)/python $(VERSION)))
$(error .venv has Python $(shell $(BIN)/python $(VERSION)), not that of $(PYTHON): rm -rf .venv first)
endif
endif

.PHONY: spiral test coverage lint format ruff cython-lint clang-format mypy workflows prose house docs wasm classroom sanitize wheel bench clean
.DELETE_ON_ERROR:

# While one core still compiles, the other fetches matplotlib.
spiral: .venv/needs
	@$(MAKE) --no-print-directory --jobs=2 .venv/built .venv/drawing
	@$(MAKE) --no-print-directory .venv/plot
	$(BIN)/caffelite spiral --output spiral.png

# In a process for each core; the threads of one do not spin while they wait for those of another.
test: .venv/test,lint .venv/levels
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n auto --dist worksteal

# How much of the Python code the tests run: the package's figure and the files that are not run whole.
coverage: .venv/coverage .venv/levels
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n auto --dist worksteal --cov --cov-report=term:skip-covered

lint: mypy cython-lint clang-format ruff workflows prose house

ruff: .venv/test,lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

cython-lint: .venv/test,lint
	PATH=$(CURDIR)/$(BIN):$$PATH cython-lint caffelite

clang-format: .venv/test,lint
	$(BIN)/clang-format --dry-run -Werror caffelite/_kernels/loops/*.h caffelite/c/kernels/*.[ch] examples/on_device/*.[ch]

# Everything that a formatter decides.
format: .venv/test,lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i caffelite/_kernels/loops/*.h caffelite/c/kernels/*.[ch] examples/on_device/*.[ch]

mypy: .venv/test,lint
	$(BIN)/python caffelite/_kernels/generate.py
	$(BIN)/mypy

workflows: .venv/test,lint
	$(BIN)/zizmor --offline --quiet .github

prose: | $(BIN)/python
	$(BIN)/python tests/tools/prose.py

house: | $(BIN)/python
	$(BIN)/python tests/tools/house.py

# The site, in docs/_build/html/index.html: every program on it is run, and a warning is an error.
docs: .venv/docs .venv/levels
	$(BIN)/sphinx-build -W --keep-going -j auto docs docs/_build/html

# The nets of the site that learn in a browser. They are under version control, and only this target needs clang for
# WebAssembly. On Debian 12: apt install clang-14 lld-14 wasi-libc libclang-rt-14-dev-wasm32
wasm: .venv/built
	$(BIN)/python docs/_wasm/build.py

# Wheels, notebooks, programs and the site, if `make docs` has built it, for a class without a network.
classroom: .venv/classroom .venv/levels
	$(BIN)/python tests/tools/classroom.py

sanitize: .venv/test,lint
	$(BIN)/python tests/tools/sanitize.py

wheel: .venv/test,wheel
	$(BIN)/python tests/tools/wheels.py

bench: .venv/bench
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/convolutions.py --profile
	$(BIN)/python benchmarks/sequences.py --profile
	$(BIN)/python benchmarks/microgpt.py
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
	$(BIN)/python benchmarks/exported_training.py
	$(BIN)/python benchmarks/browser.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/explain.py
	$(BIN)/python benchmarks/live.py
	$(BIN)/python benchmarks/playground.py
	$(BIN)/python benchmarks/mpi.py

clean:
	rm -rf .venv .coverage build dist classroom docs/_build docs/_notebooks docs/gallery *.egg-info caffelite/*/*.so caffelite/*/*.c

# .venv/EXTRAS is there when caffelite is installed with them, for which nothing is compiled again.
.venv/%: .venv/built
	CAFFELITE_BUILT=1 $(PIP) --no-build-isolation --editable '.[$*]'
	@touch $@

# Here, and only here, the present sources are compiled: once for all targets, and only the modules that have changed.
# For tests and pages the loops are compiled for all instruction sets, for other targets only for this processor's best.
.venv/built: $(SOURCES) .venv/needs
	CAFFELITE_LEVELS=native $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

.venv/levels: .venv/built
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

.venv/needs: | $(BIN)/python
	$(PIP) 'setuptools>=77' 'cython>=3.1' 'numpy>=2.0'
	@touch $@

.venv/drawing: .venv/needs
	$(PIP) 'matplotlib>=3.7' 'safetensors>=0.4.3' 'tqdm>=4.60'
	@touch $@

$(BIN)/python:
	@echo "From nothing to the picture it takes 35 to 75 seconds on two cores."
	$(PYTHON) -m venv .venv
