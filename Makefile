# make demo and make test need only Python >= 3.11 with pip, and set everything else up themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# Where pip finds torch's CPU build if the default index has none (tried second).
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Bytecode is made when a module is first imported, not at installation. It is kept even where the environment says
# otherwise: without it every process that the tests start would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint check wheel bench engine compiled newest differential thorough reproduce predictors docs notebooks clean

demo: $(VENV)/.core
	$(BIN)/python -m sim.demo

# A file's tests run in one process, so that what they share is made once; in order of files, for the last are short.
# Assertions are plain at first: on a clean checkout it takes each process 20 s to prepare all of them for telling
# their values. So what has failed runs once more, and tells them.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
test: lint
	$(PYTEST) --assert=plain || { $(PYTEST) --last-failed --last-failed-no-failures=none; false; }

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

# Types, too: they take as long as all else that is no test.
check: lint
	$(BIN)/mypy --num-workers 2

# Whether `pip install .` gives all that the commands need: in a venv of its own, from another folder.
wheel:
	PYTHON=$(PYTHON) .ci/wheel

bench: $(VENV)/.core
	$(BIN)/python tests/bench/engine_speed.py
	$(BIN)/python tests/bench/policy_cost.py
	$(BIN)/python tests/bench/system_speed.py

# The simulator's core, its comparison with the reference, and its speed, without torch: for a Python that torch has
# no build for, or that has a JIT, such as make engine PYTHON=python3.15 VENV=.venv315 PYTHON_JIT=1.
engine: $(VENV)/.engine
	$(BIN)/python -m pytest -n 2 $(addprefix tests/unit/sim/,core engine policies values workload) \
	  $(addprefix tests/differential/test_,engine_against_reference.py simple_runs.py)
	$(BIN)/python tests/bench/engine_speed.py

# Core, engine and what HOBBIT does at gates in machine code (mypyc): a wheel of the same source, in a venv of its own,
# with its tests, its comparison with the reference, and its results and speed beside the checkout's.
compiled: $(VENV)/.test
	PYTHON=$(BIN)/python .ci/compiled

# What reads transformers' models, with the newest releases instead of those in constraints.txt: what a user installs
# today. Only torch stays, whose newest build brings CUDA.
newest: PIP := .venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -c .venv-newest/torch.txt
newest:
	test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	grep '^torch' constraints.txt > .venv-newest/torch.txt
	$(PIP) -e '.[model,test]' || $(PIP) --extra-index-url $(TORCH_INDEX) -e '.[model,test]'
	.venv-newest/bin/python -m pytest -n 2 $(addprefix tests/unit/,capture real sim/machine)

# A longer comparison with the reference simulator than the tests make: SCENARIOS random runs, with and without ties.
SCENARIOS ?= 3000
differential: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m "not gpu" tests/differential --scenarios $(SCENARIOS)

# What the bundled traces' fit splits tell the predictors: statistics, then networks. It comes with the project.
FITS := capture/assets/predictors/tiny_mixtral
predictors: $(VENV)/.test
	for name in expert_paths next_site activation_matrix token_routes; do \
	  $(BIN)/python -m sim.fit predictor=$$name trace=tiny_mixtral output_dir=$(FITS) || exit; done
	for name in learned learned_gate_input learned_stride_2; do \
	  $(BIN)/python -m capture.fit predictor=$$name trace=tiny_mixtral output_dir=$(FITS) || exit; done
	for name in next_site activation_matrix token_routes; do for trace in tiny_qwen2moe tiny_switch; do \
	  $(BIN)/python -m sim.fit predictor=$$name trace=$$trace output_dir=capture/assets/predictors/$$trace || exit; \
	done; done
	$(BIN)/python -m sim.fit predictor=expert_paths trace=tiny_switch output_dir=capture/assets/predictors/tiny_switch

# The papers' claims beside what the simulator says: docs/papers.md. What was run is kept; a killed one goes on.
# PHONE=DIR: the folder of the recorded phone run, where it is at hand.
PHONE ?=
# RECORDED=MODEL:DIR: a recorded trace that the gains over LRU and LFU are asked of, too.
RECORDED ?=
reproduce: $(VENV)/.core
	$(BIN)/python -m sim.reproduce $(if $(PHONE),phone=$(PHONE)) $(if $(RECORDED),recorded=$(RECORDED))

# What takes too long for every change: all systems and predictors on both drivers.
thorough: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m thorough

# Runs every notebook and compares what it prints with what it is kept with.
notebooks: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m "" tests/golden/test_notebooks.py

# The documentation site, into site/.
docs: $(VENV)/.core
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What is installed is compiled when it is first imported: most of it never is.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.engine: $(VENV)/.core
	$(PIP) pytest pytest-xdist hypothesis
	touch $@

# All at once; where something has no build for this machine, one after another, without what can be missed. An old
# pip takes twice as long.
$(VENV)/.test: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(PIP) --upgrade pip
	$(PIP) -e '.[model,test,oracle,kernels]' || $(MAKE) $(VENV)/.piecemeal
	touch $(VENV)/.core $@

.PHONY: $(VENV)/.piecemeal
$(VENV)/.piecemeal:
	$(PIP) -e '.[model,test]' || $(PIP) --extra-index-url $(TORCH_INDEX) -e '.[model,test]'
	$(PIP) -e '.[oracle]' || echo 'libcachesim is not installed: its comparisons are skipped'
	$(PIP) -e '.[kernels]' || echo 'triton is not installed: the checks of its kernels are skipped'

clean:
	rm -rf $(VENV) outputs build site *.egg-info
