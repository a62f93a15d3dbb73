# make help | install | quickstart | shell | test | test-extras | test-cluster | test-cuda | test-mps | lint | docs | torture | bench | data-* | train-* | reproduce-* | evidence | clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: help quickstart shell install test test-extras docs test-cluster test-cuda test-mps lint torture bench bench-methods bench-metrics
.PHONY: bench-growth bench-plan bench-numerics evidence clean

help: ## what there is
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) '.[dev,peers]'
	touch $(STAMP)

install: $(STAMP) ## create .venv and install salrun with its test tools, in the tested versions

$(VENV)/.quick: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) .
	touch $(VENV)/.quick

quickstart: $(VENV)/.quick ## install, run a first experiment, print its verdicts and where the report is
	$(BIN)/salrun +experiment=smerf_simple_fr scale=laptop

shell: $(VENV)/.quick ## a shell in which `salrun` is found
	@PATH="$(CURDIR)/$(BIN):$$PATH" $${SHELL:-bash}

test: $(STAMP) ## the whole test suite, but for the launchers
	$(BIN)/python -m pytest -rfEs -n 2 --dist worksteal --durations 20 --ignore=tests/cluster

$(VENV)/.cluster: $(STAMP)
	$(INSTALL) '.[dev,peers,cluster,ray]'
	touch $(VENV)/.cluster

test-cluster: $(VENV)/.cluster ## sweeps on joblib, processes, Ray and a Slurm of its own, with kills
	$(BIN)/python -m pytest -rfEs tests/cluster

EXTRAS = dev,peers,tensorboard,mlflow,wandb,huggingface,timm,notebook,docs

$(VENV)/.extras: $(STAMP)
	$(INSTALL) '.[$(EXTRAS)]'
	touch $(VENV)/.extras

test-extras: $(VENV)/.extras ## trackers, the Hugging Face hub's data, the notebook and the docs site, with their packages
	$(BIN)/python -m pytest -rfEs -n 2 --dist worksteal tests/extras

docs: $(VENV)/.extras ## the docs as a site: build/site/index.html (strict: a broken link fails)
	$(BIN)/python -m mkdocs build --strict

LOOK_FOR = Look for: maps and scores as on the CPU (off by < 1e-4, < 1e-3); bfloat16 and, from Ampere on, tf32 among the \
	steps of the fast copy, with a small effect; a compiled copy; chunks halved where memory is full; no skipped test.

test-cuda: $(STAMP) ## the tests that need a CUDA device; skipped, with the reason, where there is none
	@echo '$(LOOK_FOR)'
	$(BIN)/python -m pytest -rfEs -s -n 0 -m cuda tests/unit

test-mps: $(STAMP) ## the same on an Apple GPU (float16, not compiled)
	@echo '$(LOOK_FOR)'
	$(BIN)/python -m pytest -rfEs -s -n 0 -m mps tests/unit

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove what was built (not outputs/, not the store)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

torture: $(STAMP) ## try to break it: kills, fuzz, full disks, damage (two hours); docs/results/torture.md; SEED=n
	$(BIN)/python -m tests.torture.trials
	$(BIN)/python -m tests.torture.campaign --record --seed $(or $(SEED),1)

bench: $(STAMP) ## speed, memory and growth against floors and peers (idle machine, 35 minutes); BENCH=--missing goes on
	$(BIN)/python scripts/bench_all.py --out docs/results/bench --readme README.md $(BENCH)

bench-methods: $(STAMP) ## images/s of every method
	$(BIN)/python scripts/bench_methods.py --out docs/results/bench

bench-metrics: $(STAMP) ## images/s of the metrics that ask the model
	$(BIN)/python scripts/bench_metrics.py --out docs/results/bench

bench-growth: $(STAMP) ## time and memory against images, pixels, methods, masks
	$(BIN)/python scripts/bench_growth.py --out docs/results/bench

bench-plan: $(STAMP) ## whole runs beside what their plans said
	$(BIN)/python scripts/bench_plan.py --out docs/results/bench

bench-numerics: $(STAMP) ## what half precision does to each paper's metrics
	$(BIN)/python scripts/bench_numerics.py --out docs/results/bench

data-%: $(VENV)/.quick ## data-mnist|cifar10|tinyimagenet: download and verify a data set
	$(BIN)/python scripts/get_data.py $*

train-%: $(VENV)/.quick ## train-<name>: reproduce a shipped checkpoint
	$(BIN)/python scripts/train_models.py $*

reproduce-%: $(VENV)/.quick ## reproduce-smerf|tomsett|yona|zhang: run what is missing, collect, conclude
	$(BIN)/python scripts/reproduce.py $*

evidence: $(VENV)/.quick ## the most valuable missing runs of all papers for HOURS (2.5); their tables: docs/results
	$(BIN)/python scripts/reproduce.py --hours $(or $(HOURS),2.5)
