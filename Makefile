# make demo    see it work              make quick      lint, types, fast tests: while working
# make test    what CI runs             make test-all   the slow tests too
# make bench   the figures we publish   make lint       ruff alone       make clean   caches and builds
# make mutants planted bugs, all killed make test-cpus  the suite as other CPUs compute it (hours)
# make docs    the site, in build/site

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.ready-docs

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_WAIT_POLICY := PASSIVE
export PYTHONDONTWRITEBYTECODE :=  # else every process compiles vitreous anew

# One thread in each of two workers: two spinning threads beside a busy process run 40 times slower.
PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test quick test-all test-cpus mutants lint types bench docs browser clean

demo: $(READY)
	$(BIN)/vitreous demo

test: lint types browser
	$(PYTEST) -m "not slow"

quick: lint types
	$(PYTEST) -m "not slow" --hypothesis-profile=quick

test-all: lint types browser
	$(PYTEST)

test-cpus: $(READY)
	$(BIN)/python tests/cpu_settings.py

mutants: $(READY)
	$(BIN)/python tests/mutations/run.py --jobs 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	@set -e; for script in benchmarks/*.py; do echo "$$script" >&2; $(BIN)/python "$$script"; done

# make docs RUNTIME=FOLDER puts the demo's model into the browser: FOLDER holds onnxruntime-web's files.
docs: $(DOCS_READY)
	$(BIN)/python -m website $(if $(RUNTIME),--runtime "$(RUNTIME)")

# Pages are tested in Debian's Chromium. CI gets it by itself; elsewhere those tests are skipped, with a reason.
browser:
	@test -z "$$CI" || command -v chromium google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } || \
		echo "no Chromium here, and apt-get brings none: browser tests are skipped"

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# With CI set, a torch that brought CUDA with it shows at once, not as gigabytes.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	test -z "$$CI" || $(BIN)/python -c 'import torch; assert torch.version.cuda is None, "torch brought CUDA"'
	touch $@

$(DOCS_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@
