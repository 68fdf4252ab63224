# Set-up is part of every target. Where everything is installed already, say e.g. `make test PY=python3`:
# no environment is made then.
VENV := .venv
PY := $(VENV)/bin/python
PYTHON = $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo "$$candidate" && break; done)
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready)
# Not `python -m`: the wheel of clang-format has no module to run.
CLANG_FORMAT = $(if $(READY),$(VENV)/bin/)clang-format
DEVICE_CODE = $(shell find cuda_src tests \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' \) -print)
SANITIZER := compute-sanitizer
ARGS :=

.PHONY: run test bench sanitize mutants check fix clean

run: $(READY)
	$(PY) -m cuconv $(ARGS)

# Several processes, where pytest-xdist is installed; each takes tests from another that has more left.
test: $(READY)
	$(PY) -m pytest $(if $(shell $(PY) -c 'import xdist; print(1)' 2>/dev/null),-n auto --dist worksteal) $(ARGS)

bench: $(READY)
	$(PY) -m pytest tests/benchmarks $(ARGS)

# Without a caching allocator every array is an allocation of its own, whose bounds the tool knows.
sanitize: $(READY)
	for tool in memcheck racecheck initcheck; do \
		CUCONV_SANITIZE=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool $$tool --error-exitcode 1 \
			$(PY) -m pytest -m gpu -k unit tests/families/test_numerics.py::test_cupy $(ARGS) || exit 1; \
	done

# Plants bugs in the device code one by one and fails when the tests named for one do not find it: about half an hour on two cores.
mutants: $(READY)
	$(PY) -m tests.mutants $(ARGS)

check: $(READY)
	$(PY) -m ruff check --no-fix .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CLANG_FORMAT) --dry-run --Werror $(DEVICE_CODE)
	$(PY) -m pytest -q -p no:cacheprovider tests/house/test_house.py tests/house/test_house_cuda.py

fix: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(DEVICE_CODE)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "python3 of version 3.10 or later was not found" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	touch $@
