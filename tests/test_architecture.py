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
FUNCTION_LINES = 50
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


def test_the_top_level_holds_what_a_stranger_expects():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of Git")
    tracked = processes.run(["git", "ls-files"], check=True).stdout
    assert {path.partition("/")[0] for path in tracked.splitlines()} == TOP


def code_lines(node: ast.AST) -> int:
    """Lines of a definition without its docstring."""
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is not None:
        first = node.body[0]
        lines -= first.end_lineno - first.lineno + 1
    return lines


@pytest.fixture(scope="module", params=MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def module(request):
    return request.param, ast.parse(request.param.read_text())


def test_modules_functions_and_classes_stay_small(module):
    path, tree = module
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES, f"{lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert code_lines(node) <= FUNCTION_LINES, f"{node.name}: {code_lines(node)} lines of code"
        if isinstance(node, ast.ClassDef):
            assert code_lines(node) <= CLASS_LINES, f"{node.name}: {code_lines(node)} lines"


def test_modules_and_public_names_have_docstrings(module):
    _, tree = module
    assert ast.get_docstring(tree), "module docstring"
    for node in tree.body:
        public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if public:
            assert ast.get_docstring(node), f"{node.name}: docstring"


def test_docstrings_are_understood_alone(module):
    """No line refers to the one above it: a clause of `Raises:` has a subject."""
    _, tree = module
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            name = getattr(node, "name", "the module")
            assert not re.match(r"(The same|So many|As)\b", text), name
            assert not re.search(r"[:.] The same[.;,]|: As `|\b(errors|arguments) as (above|`)|\bas above\b", text), (
                name
            )
            _, _, raises = text.partition("Raises:\n")
            assert not re.search(r"^    \w+: (It|They|There is (none|one)|Always|As)\b", raises, re.MULTILINE), name


def test_imports_flow_straight_down():
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
def trees():
    return {named(path): ast.parse(path.read_text()) for path in MODULES}


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
    """Packages and modules of public names pass names on; modules do not."""
    made = {name: definitions(tree) for name, tree in trees.items()}
    doors = {named(path) for path in MODULES if path.name == "__init__.py"}
    doors |= {f"lance_core.{name}" for name in ("fragment", "lance", "optimize", "progress", "udf")}
    elsewhere = [
        f"{name}: {alias.name} of {node.module}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in trees and node.module not in doors
        for alias in node.names
        if alias.name not in made[node.module]
    ]
    assert elsewhere == []


NAMED_BY_OTHERS = {
    "lance_core.table": "records of the format, named by its specification",
    "lance_core.verbs.pylance_types": "classes of the public API, named by pylance",
    "pyspark_lance.statements.records": "statements of SQL, named by SQL",
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


def test_heads_of_modules_are_alike(module):
    """Docstring, imports, `__all__`, then the rest; lance_core's annotations are not evaluated."""
    path, tree = module
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    offered = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    assert all(node.lineno > imports[-1].lineno for node in offered if imports)
    if path.relative_to(ROOT).parts[0] == "lance_core" and path.name != "__init__.py":
        has_annotations = any(isinstance(node, ast.FunctionDef | ast.AnnAssign) for node in ast.walk(tree))
        is_future = bool(imports) and ast.unparse(imports[0]) == "from __future__ import annotations"
        assert is_future or not has_annotations


def test_ignored_rules_have_reasons(module):
    path, _ = module
    ignores = [line for line in path.read_text().splitlines() if re.search(r"# noqa\b", line)]
    assert [line for line in ignores if not re.search(r"# noqa: [A-Z0-9]+(, [A-Z0-9]+)* - \w", line)] == []


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


@pytest.mark.parametrize("package", ["lance_core", "pyspark_lance", "lance_dagster"])
def test_importing_a_package_stays_light(package):
    """Dagster loads code locations often: Spark and the data frame libraries are imported on use."""
    heavy = ["pyspark", "pandas", "polars", "duckdb", "s3fs", "boto3", "lance", "pytest"]
    if package == "lance_core":
        heavy += ["dagster", "fsspec"]
    program = f"import sys, {package}; print([m for m in {heavy} if m in sys.modules])"
    done = processes.run([sys.executable, "-c", program], check=True)
    assert done.stdout.strip() == "[]"
