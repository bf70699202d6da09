# The two commands of the README are `make demo` and `make test`; `make` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The oldest Python that pyproject.toml allows, and where its environment is.
OLDEST_PYTHON ?= python3.11
OLDEST_VENV   := .venv-oldest
FAST   := -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not long and not ray and not matrix"
export RAY_USAGE_STATS_ENABLED := 0
check oldest test long soak matrices: export RAY_AUTH_MODE := disabled
# Several processes already share the cores; threads of each would mostly wait for each other.
check oldest test long soak matrices: export OMP_NUM_THREADS := 1
# The tests start hundreds of processes: none of them compiles again what another has compiled.
check demo oldest test long soak matrices: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo lint check oldest test long soak matrices mutants oracles bench pages docs clean
help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

# TORCH_INDEX is the address that the install page of PyTorch gives for CPUs: then no CUDA comes along. Python compiles what
# the demo imports, a fifth of the files; pip would compile all of them, one by one.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --disable-pip-version-check --no-compile --no-deps \
		-i $(TORCH_INDEX) $$(grep -E '^torch(vision)?==' constraints.txt))
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/installed-bench: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

demo: $(VENV)/installed  ## search on the bundled digits: ranking, report, exported winner
	$(BIN)/nas-evidence search search_spaces/digits.toml
	@echo
	@echo 'The report is runs/digits/report/index.html: open it in a browser.'
	@echo 'To search a table of your own, and predict its column COLUMN:'
	@echo '  source $(VENV)/bin/activate'
	@echo '  nas-evidence search YOUR.csv --target COLUMN'

lint: $(VENV)/installed-test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint  ## ruff, mypy and the fast tests, about 95 seconds
	$(BIN)/python -m pytest -q $(FAST)

oldest:          ## the fast tests on the oldest versions that pyproject.toml declares, in .venv-oldest
	test -x $(OLDEST_VENV)/bin/python || $(OLDEST_PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python tests/oldest.py > $(OLDEST_VENV)/constraints.txt
	$(OLDEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST_VENV)/constraints.txt -e '.[test]'
	$(OLDEST_VENV)/bin/python -m pytest -q $(FAST)

test: $(VENV)/installed-test  ## the tests, under 10 minutes on two cores, and a sample of each matrix
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
		-m "not long and not soak and not matrix"

long: $(VENV)/installed-test  ## the tests that take five seconds or more each
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
		-m "long and not soak and not matrix"

soak: $(VENV)/installed-test  ## the tests that take minutes each
	$(BIN)/python -m pytest -q -m soak

matrices: $(VENV)/installed-test  ## the matrices of which `make test` runs a sample
	$(BIN)/python -m pytest -q -n 3 --dist load -m matrix

mutants: $(VENV)/installed-test  ## wrong formulas in a copy, and which check sees each
	$(BIN)/python benchmarks/mutants.py

oracles: $(VENV)/installed-bench  ## our curvature against laplace-torch, BackPACK and curvlinops
	$(BIN)/python -m pytest -q tests/oracles

bench: $(if $(SCRIPT),$(VENV)/installed-bench)  ## one script of benchmarks/ (SCRIPT=name ARGS="..."), or the list of them
	@$(if $(SCRIPT),$(BIN)/python benchmarks/$(SCRIPT).py $(ARGS),sed -n '/^|/p' benchmarks/README.md; echo 'Choose one: make bench SCRIPT=name ARGS="..."')

pages: $(VENV)/installed-test  ## every table of a page that is made from committed results
	for script in gallery.py result_tables.py; do \
		$(BIN)/python benchmarks/$$script > /dev/null || exit 1; done

docs: $(VENV)/installed  ## the documentation site, in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

clean:           ## remove the environments and all runs
	rm -rf $(VENV) $(OLDEST_VENV) runs site
