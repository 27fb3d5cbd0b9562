# make demo   set up and train the demo federation
# make quick  tests that compile nothing and start no process: most of what can be wrong, in about half a minute
# make test   run every test
# make lint   ruff, mypy and the layers of the package
# make docs   the documentation as a site, in site/
# make bench  ratios against the usual per-client loop (installs torch)
# make format  let ruff correct what it can
# make clean  remove all that was made

PYTHON ?= python3
VENV := .venv
# What the tests need besides the package; EXTRAS=dev,torch runs the tests of PyTorch blocks too.
EXTRAS ?= dev
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start many processes, and each would compile every module again.
export PYTHONDONTWRITEBYTECODE =
# Most of a test's time goes into compiling programs that then run for milliseconds. Where no last bits are compared with those of
# another program, or with numbers that were written down, tests compile them without optimisation. Plain pytest optimises everywhere.
QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

.PHONY: demo quick test lint format docs bench clean

demo: $(VENV)/installed
	$(BIN)/tdcd run

quick: $(VENV)/installed-$(EXTRAS)
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile quick -m "quick and not slow" \
		$$(grep -rl mark.quick tests --include="test_*.py")

test: $(VENV)/installed-$(EXTRAS)
	$(QUICKLY) $(BIN)/python -m pytest -n 3 --dist worksteal -m "not optimised"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m optimised $$(grep -rl optimised tests --include="*.py")

lint: $(VENV)/installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-$(EXTRAS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Material for MkDocs announces its successor at every start; the pinned versions are what we build with.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/installed-dev,torch
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing tdcd and its pinned dependencies into $(VENV) (half a minute or so)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-%: $(VENV)/installed
	@echo "Installing the extras $* into $(VENV)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	@touch $@
