# One word per task. `make` alone lists them; `make run` and `make test` need nothing typed before them.

PYTHON_BASE ?= $(eval PYTHON_BASE := $(shell tools/fastest-python))$(PYTHON_BASE)
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip --quiet --disable-pip-version-check --no-input
READY := $(VENV)/.ready
READY_BENCH := $(VENV)/.ready-bench
READY_TEST := $(VENV)/.ready-test

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench soak clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make the virtual environment .venv, once

run: $(READY) ## Run the demonstration: events, a server, its crash, pipelines, and nothing lost
	@$(PYTHON) -m clarion demo --plot build/demo.png

# In their order: the files with the longest tests come before the many short ones, so that both workers end together.
test: $(READY_TEST) ## Run all tests except the long ones
	$(PYTHON) -m pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

check: $(READY) ## Lint, formatting and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

bench: $(READY_BENCH) ## Measure Clarion and its peers side by side
	$(PYTHON) -m benchmarks
	$(PYTHON) -m benchmarks.event_delivery
	$(PYTHON) -m benchmarks.never_mute
	$(PYTHON) -m benchmarks.spark
	$(PYTHON) -m benchmarks.alert_latency

soak: $(READY_TEST) ## Run the long fault and load tests
	$(PYTHON) -m pytest -m soak

clean: ## Remove caches and build output (.venv stays)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -not -path '*/.peers/*' -prune -exec rm -rf {} +

# The stamp is made last: an interrupted set-up is done again. Debian ships Python without venv; only then is a
# package installed. Spark needs Java, from Debian where it is missing; without it all but the pipelines works.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON_BASE) > /dev/null || { \
		echo "clarion needs Python 3.11 or newer, and there is no $(PYTHON_BASE) on the PATH" >&2; exit 1; }
	@$(PYTHON_BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "clarion needs Python 3.11 or newer; $(PYTHON_BASE) is $$($(PYTHON_BASE) --version 2>&1)." \
			"Name another one: make PYTHON_BASE=python3.12 …" >&2; exit 1; }
	@$(PYTHON_BASE) -c 'import ensurepip, venv' 2> /dev/null || { \
		command -v apt-get > /dev/null || { \
			echo "$(PYTHON_BASE) has no module venv: install it (python3-venv on Debian)" >&2; exit 1; }; \
		as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
		$$as_root apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq python3-venv > /dev/null; }
	@echo "setting up $(VENV) (once)"
	@[ -x $(PYTHON) ] || $(PYTHON_BASE) -m venv $(VENV)
	@$(PIP) install -e '.[cluster,dev,spark]' -c constraints.txt
	@{ [ -n "$$JAVA_HOME" ] && [ -x "$$JAVA_HOME/bin/java" ]; } || command -v java > /dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
		install_java() { DEBIAN_FRONTEND=noninteractive timeout 300 $$as_root apt-get install -y -qq \
			--no-install-recommends "$$1" > /dev/null 2>&1; }; \
		{ command -v apt-get > /dev/null && timeout 120 $$as_root apt-get update -qq 2> /dev/null \
			&& { install_java openjdk-17-jre-headless || install_java default-jre-headless; }; } \
			|| echo "no Java could be installed: pipelines need Java 17 or newer, all else works without" >&2; }
	@touch $@

$(READY_BENCH): $(READY)
	@$(PIP) install -e '.[bench]' -c constraints.txt
	@touch $@

# One of the witnesses of a pair is a ZooKeeper, and it is tested with a real one, from Debian where it is missing.
# Without it those tests are skipped, with the reason.
$(READY_TEST): $(READY)
	@[ -e /usr/share/java/zookeeper.jar ] && command -v java > /dev/null || ! command -v apt-get > /dev/null || { \
		as_root=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
		{ timeout 120 $$as_root apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive timeout 300 $$as_root apt-get install -y -qq --no-install-recommends \
				zookeeper > /dev/null; } || echo "no ZooKeeper could be installed: its tests are skipped" >&2; }
	@touch $@
