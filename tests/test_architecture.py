"""The shape of the tree: layers, sizes, docstrings."""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parent.parent
PACKAGES = ("lance_core", "pyspark_lance", "lance_dagster", "example_project")
MODULES = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if "_proto" not in p.parts]

MODULE_LINES = 600
FUNCTION_LINES = 70
CLASS_LINES = 420


TOP = {
    *(".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CODE_OF_CONDUCT.md"),
    *("CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "docs", "example_project", "lance_core"),
    *(
        "changes",
        "lance_dagster",
        "mkdocs.yml",
        "protos",
        "pyproject.toml",
        "pyspark_lance",
        "tests",
        "uv.lock",
        "workspace.yaml",
    ),
}


def test_the_top_level_has_the_expected_files():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout of Git")
    tracked = processes.run(["git", "ls-files"], check=True).stdout
    assert {path.partition("/")[0] for path in tracked.splitlines()} == TOP


def code_lines(node: ast.AST) -> int:
    """Lines of a definition without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        first = node.body[0]
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.fixture(scope="module")
def modules():
    """Each module with its tree."""
    return {path: ast.parse(path.read_text()) for path in MODULES}


def named_nodes(modules, *kinds):
    """The definitions of all modules, each with the words that name it."""
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}", node


def test_modules_stay_small(modules):
    lines = {str(path): len(path.read_text().splitlines()) for path in modules}
    assert {path: number for path, number in lines.items() if number > MODULE_LINES} == {}


def test_functions_and_classes_stay_small(modules):
    limits = {ast.FunctionDef: FUNCTION_LINES, ast.AsyncFunctionDef: FUNCTION_LINES, ast.ClassDef: CLASS_LINES}
    lines = [(name, code_lines(node), limits[type(node)]) for name, node in named_nodes(modules, *limits)]
    assert [(name, number) for name, number, limit in lines if number > limit] == []


def test_modules_and_public_names_have_docstrings(modules):
    public = [
        (f"{path.relative_to(ROOT)}: {node.name}", node)
        for path, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    lacking = [name for name, node in [*named_nodes(modules, ast.Module), *public] if not ast.get_docstring(node)]
    assert lacking == []


REFERS_TO_ANOTHER = (
    r"\A(The same|So many|As)\b",
    r"[:.] The same[.;,]|: As `|\b(errors|arguments) as (above|`)|\bas above\b",
    r"Raises:\n(?s:.*)^    \w+: (It|They|There is (none|one)|Always|As)\b",
)


def test_docstrings_are_understood_alone(modules):
    """No line refers to the one above it: a clause of `Raises:` has a subject."""
    docstrings = [
        (name, ast.get_docstring(node) or "")
        for name, node in named_nodes(modules, ast.Module, ast.ClassDef, ast.FunctionDef)
    ]
    assert [
        name
        for name, docstring in docstrings
        if any(re.search(one, docstring, re.MULTILINE) for one in REFERS_TO_ANOTHER)
    ] == []


def test_imports_run_downwards():
    linter = Path(sys.executable).with_name("lint-imports")
    done = processes.run([linter])
    assert done.returncode == 0, done.stdout + done.stderr


def layers(package: str) -> list[list[str]]:
    """The layers of a package's import contract, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one["type"] == "layers" and one["containers"] == [package])
    return [layer.split(" | ") for layer in found]


def test_contributing_draws_the_layers_of_the_contracts():
    core, above = re.findall(r"^```text\n(.*?)^```$", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    verbs = [line.split() for line in core.splitlines() if line.startswith(" ")]
    assert verbs == [[name for layer in layers("lance_core.verbs") for name in layer]]
    lines = [line.replace(" | ", " ").split() for line in core.splitlines() if not line.startswith("  ")]
    core_layers = layers("lance_core")
    assert [line[: len(layer)] for line, layer in zip(lines, core_layers, strict=True)] == core_layers
    middle = above.index("lance_dagster")
    for package, column in (("pyspark_lance", slice(0, middle)), ("lance_dagster", slice(middle, None))):
        drawn = re.findall(r"\w+", "\n".join(line[column] for line in above.splitlines()))
        assert drawn == [package, *(name for layer in layers(package) for name in layer)]


def named(path: Path) -> str:
    """The name by which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def trees(modules):
    return {named(path): tree for path, tree in modules.items()}


def imported(tree: ast.Module, known) -> set[str]:
    """The modules that a module imports: at its head, in functions, and for type checkers alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= within if within <= known.keys() else {node.module, *within}
    return found & known.keys()


def test_no_module_imports_itself_by_way_of_others(trees):
    graph = {name: imported(tree, trees) - {name} for name, tree in trees.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def definitions(tree: ast.Module) -> set[str]:
    """The names that a module makes itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_names_are_imported_from_their_home(trees):
    """Only packages and modules of public names re-export names."""
    made = {name: definitions(tree) for name, tree in trees.items()}
    public = {named(path) for path in MODULES if path.name == "__init__.py"}
    public |= {f"lance_core.{name}" for name in ("catalog", "fragment", "lance", "optimize", "progress", "udf")}
    elsewhere = [
        f"{name}: {alias.name} of {node.module}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in trees and node.module not in public
        for alias in node.names
        if alias.name not in made[node.module]
    ]
    assert elsewhere == []


NAMED_BY_OTHERS = {
    "lance_core.table": "records of the format, named by its specification",
    "lance_core.verbs.pylance_types": "classes of the public API, named by pylance",
}
"""Packages whose classes have the names of others: a class of each may have the name of one of the others."""


def test_a_class_name_has_one_meaning(trees):
    """A name with and without an underscore counts as one."""
    owners = {}
    for name, tree in trees.items():
        package = next((one for one in NAMED_BY_OTHERS if f"{name}.".startswith(f"{one}.")), "")
        if not name.startswith("example_project"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    owners.setdefault(node.name.lstrip("_"), []).append((package, name))
    several = {
        one: [name for _, name in found]
        for one, found in owners.items()
        if len(found) > len({package for package, _ in found if package}) and len(found) > 1
    }
    assert several == {}


def has_a_usual_head(path, tree):
    """Docstring, imports, `__all__`, then the rest; lance_core's annotations are not evaluated."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    offered = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    if any(node.lineno < imports[-1].lineno for node in offered if imports):
        return False
    if path.relative_to(ROOT).parts[0] != "lance_core" or path.name == "__init__.py":
        return True
    has_annotations = any(isinstance(node, ast.FunctionDef | ast.AnnAssign) for node in ast.walk(tree))
    is_future = bool(imports) and ast.unparse(imports[0]) == "from __future__ import annotations"
    return is_future or not has_annotations


def test_heads_of_modules_are_alike(modules):
    assert [str(path) for path, tree in modules.items() if not has_a_usual_head(path, tree)] == []


def test_ignored_rules_have_reasons(modules):
    ignores = [line for path in modules for line in path.read_text().splitlines() if re.search(r"# noqa\b", line)]
    assert [line for line in ignores if not re.search(r"# noqa: [A-Z0-9]+(, [A-Z0-9]+)* - \w", line)] == []
    assert [line for line in ignores if re.search(r" - (the same|as above)$", line)] == []


def test_stores_say_what_they_are(trees):
    """No other module decides by a URI's scheme what kind of storage it names."""
    inside = "lance_core.store."
    guesses = [
        name
        for name, tree in trees.items()
        if not name.startswith(inside)
        and any(isinstance(node, ast.Constant) and node.value == "://" for node in ast.walk(tree))
    ]
    assert guesses == []


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="grpcio-tools 1.73.1 has no wheels for Python 3.14")
def test_generated_code_is_what_the_protos_generate():
    done = processes.run([sys.executable, "protos/generate.py", "--check"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_a_package_stays_light():
    """Dagster loads code locations often: Spark and the data frame libraries are imported on use."""
    heavy = ["pyspark", "pandas", "polars", "duckdb", "datafusion", "s3fs", "boto3", "lance", "pytest"]
    program = f"""
import sys
import lance_core
print([name for name in {[*heavy, "dagster", "fsspec"]} if name in sys.modules])
import pyspark_lance
print([name for name in {heavy} if name in sys.modules])
import lance_dagster
print([name for name in {heavy} if name in sys.modules])
"""
    done = processes.run([sys.executable, "-c", program], check=True)
    assert done.stdout.split("\n") == ["[]", "[]", "[]", ""]


def test_loading_a_code_location_loads_neither_tables_nor_arrow():
    """Dagster loads code locations often, and in each process of a run: what only runs need is imported by runs."""
    program = """
import sys
import dagster as dg
from lance_dagster import *

@dg.asset
def rows(): ...

policy = LanceMaintenancePolicy()
maintenance = build_maintenance_job([rows], policy)
branches = build_branch_jobs([rows])
dg.Definitions(
    [rows],
    jobs=[maintenance, *branches, build_undo_job([rows]), build_erasure_job([rows]), build_change_type_job([rows]),
          build_audited_job([rows], name="audited", allow_unaudited=True)],
    schedules=[build_maintenance_schedule(maintenance)],
    sensors=[build_maintenance_sensor(maintenance, [rows], policy), build_branch_sensor([rows], branches)],
    asset_checks=[*build_lance_health_checks([rows], policy), *build_lance_integrity_checks([rows]),
                  build_lance_primary_key_check(rows, ["id"]), build_lance_drift_check(rows)],
    resources={"io_manager": LanceIOManager(root_uri="lake", branching=BranchPolicy())},
).get_repository_def()
print([name for name in ("lance_core.dataset", "lance_core.commit", "numpy", "pyarrow", "pyspark") if name in sys.modules])
"""
    done = processes.run([sys.executable, "-W", "ignore", "-c", program], check=True)
    assert done.stdout.strip() == "[]"


def test_a_pipes_process_needs_no_dagster():
    done = processes.run(
        [sys.executable, "-c", "import sys; sys.modules['dagster'] = None; import lance_dagster.pipes"]
    )
    assert done.returncode == 0, done.stderr
