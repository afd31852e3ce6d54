# The commands of the README do all the set-up by themselves, in .venv.
#   make demo    the simulator, a two-rank run beside its own prediction, a script under DDP and ours
#   make quick   format, lint, types, import contracts, and the tests that start no process
#   make test    the same, and all tests, with coverage
#   make cases   every way of training beside DDP: a table of cases, on two and four processes, by
#                all-reduce and through parameter servers
#   make docs    the pages in docs/ as HTML, in out/docs
#   make soak    a thousand labs, training runs and changes of plan; hundreds of faults; ten thousand
#                random command lines; a million malformed messages

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A usable torch that is already installed is used, and never replaced.
HAS_TORCH := $(shell $(PYTHON) tools/has_torch.py && echo yes)
VENV_FLAGS := $(if $(HAS_TORCH),--system-site-packages)
TORCH := $(if $(HAS_TORCH),,torch)
CASES := tests/processes/test_cases.py tests/processes/test_cases_on_four.py \
    tests/processes/test_cases_with_servers.py

.PHONY: demo quick test cases docs soak format lint types contracts unit clean

demo: $(VENV)/.demo
	$(BIN)/bytelane simulate examples/vgg16.toml --workers 4 --bandwidth 25Gbit --policy fifo
	@echo
	$(BIN)/bytelane simulate examples/vgg16.toml --workers 4 --bandwidth 25Gbit --policy bytescheduler
	@echo
	$(BIN)/bytelane overlay examples/vgg16-small.toml --partition 512KiB --out out
	@echo
	$(BIN)/bytelane try examples/cnn.py --ddp --repetitions 2 --out out

quick: lint types contracts
	$(BIN)/pytest -n 2 --dist loadfile -q tests/unit

test: lint types contracts unit

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

# A file of tests stays on one core, so that its pool of processes starts once. The core has its own,
# stricter rule: every branch is taken by some test.
unit: $(VENV)/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile $(CASES:%=--ignore=%)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report
	$(BIN)/coverage report --include='src/bytelane/core/*' --fail-under=100

# Every way of training beside DDP, on two and on four processes.
cases: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile $(CASES)

# Warnings are errors: a link that leads nowhere, a name that is not there.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -q -W --keep-going -b html -d out/doctrees docs out/docs
	@echo "see out/docs/index.html"

soak: $(VENV)/.dev
	$(BIN)/python tests/soak/lab.py --cycles 1000
	$(BIN)/python tests/soak/watch.py --events 1000
	$(BIN)/python tests/soak/training.py --seeds 1000
	$(BIN)/python tests/soak/training.py --seeds 1000 --contexts
	$(BIN)/python tests/soak/changes.py --changes 1000
	$(BIN)/python tests/soak/faults.py --count 300
	$(BIN)/python tests/soak/input.py --runs 10000
	$(BIN)/python tests/soak/frames.py --messages 1000000
	for shard in 1 2 3 4 5; do \
	    $(BIN)/python tests/soak/liveness.py --events 500 --shard $$shard --of 5 || exit 1; \
	done

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	@$(PYTHON) tools/check_python.py
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python tools/install.py demo $(TORCH)
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python tools/install.py dev $(TORCH)
	touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python tools/install.py docs
	touch $@

clean:
	rm -rf $(VENV) out .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
