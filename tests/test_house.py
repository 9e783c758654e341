"""The rules of the house that a machine can see. A rule that is broken for a reason names file and reason here."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.source_tree import FOLDERS, ROOT, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 50
CATCHES_EVERYTHING = {
    "nat_finetune/errors.py": "boundary(): the one place that attributes what users' code raises",
    "nat_finetune/registry.py": "a plugin that fails to import must not stop the others; its traceback is kept",
}
GUESSES = {"nat_finetune/registry.py": "reads the mark that @register_* leaves on a function"}
LOOKS_AT_GLOBAL_STATE = {"nat_finetune/testing/conformance/purity.py": "sees whether somebody else drew; it never draws"}
ANY_RNG = {"Generator", "Random", "default_rng", "PCG64", "Philox", "SeedSequence"}


# ------------------------------------------------------------------------------------------------------------------ shape


def test_no_file_is_longer_than_a_reader_can_hold():
    long = {m.place: lines for m in modules() if (lines := m.path.read_text().count("\n")) > MAX_FILE_LINES}
    assert long == {}


def test_no_function_is_longer_than_a_screen():
    long = [
        f"{module.place}:{node.lineno}: {node.name} has {lines} lines"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (lines := body_lines(node)) > MAX_FUNCTION_LINES
    ]
    assert long == []


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, and without functions inside it that are counted themselves."""
    inner = sum(
        (child.end_lineno or 0) - child.lineno + 1
        for child in node.body
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    first = node.body[0]
    docstring = ast.get_docstring(node) is not None
    start = (first.end_lineno or 0) + 1 if docstring else node.lineno
    return (node.end_lineno or 0) - start + 1 - inner


@pytest.mark.parametrize("name", ["utils", "util", "helpers", "common", "misc"])
def test_no_drawer_for_everything(name):
    assert [m.place for m in modules() if m.path.stem == name or m.path.parent.name == name] == []


def test_private_names_stay_in_their_module():
    wrong = [
        f"{module.place}:{node.lineno}: {alias.name} of {node.module}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOLDERS.values()
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert wrong == []


# ----------------------------------------------------------------------------------------------------------------- habits


def test_only_the_boundary_catches_everything():
    wrong = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and catches_everything(node) and module.place not in CATCHES_EVERYTHING
    ]
    assert wrong == [], "raise what is expected; errors.boundary() catches the rest"


def catches_everything(node: ast.ExceptHandler) -> bool:
    names = [] if node.type is None else [n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)]
    wide = node.type is None or not {"Exception", "BaseException"}.isdisjoint(names)
    goes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
    return wide and not goes_on


def calls(tree: ast.Module):
    """Every call: node and its dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node, ast.unparse(node.func)


def test_only_the_command_line_prints():
    wrong = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        if not module.name.startswith("nat_finetune.cli.")
        for node, name in calls(module.tree)
        if name in {"print", "sys.stdout.write", "sys.stderr.write"} and not module.is_script
    ]
    assert wrong == []


def test_no_guessing_at_attributes():
    wrong = [
        f"{module.place}:{node.lineno}: {name}"
        for module in modules()
        if module.place not in GUESSES
        for node, name in calls(module.tree)
        if name == "hasattr" or (name == "getattr" and len(node.args) == 3)
    ]
    assert wrong == []


def test_no_global_random_state():
    wrong = [
        f"{module.place}:{node.lineno}: {name}"
        for module in modules()
        for node, name in calls(module.tree)
        if draws_globally(node, name)
        and not (module.is_script and name == "torch.manual_seed")
        and not (module.place in LOOKS_AT_GLOBAL_STATE and name == "random.getstate")
    ]
    assert wrong == [], "draw from a generator that data.seeds gave a seed"


def draws_globally(node: ast.Call, name: str) -> bool:
    owner, _, function = name.rpartition(".")
    if owner in {"random", "np.random", "numpy.random"}:
        return function not in ANY_RNG
    if owner == "torch.random" or name in {"torch.manual_seed", "torch.seed", "torch.cuda.manual_seed_all"}:
        return function not in {"fork_rng"}
    draws = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}
    return owner == "torch" and function in draws and "generator" not in {k.arg for k in node.keywords}


def test_weights_are_never_pickled():
    imports = [
        f"{module.place}:{node.lineno}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import) and {a.name for a in node.names} & {"pickle", "dill", "cloudpickle", "joblib"}
    ]
    loads = [
        f"{module.place}:{node.lineno}: torch.load without weights_only=True"
        for module in modules()
        for node, name in calls(module.tree)
        if name == "torch.load" and not any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
    ]
    assert imports + loads == []


# -------------------------------------------------------------------------------------------------------------- packaging


def package_folders() -> dict[str, Path]:
    return {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts]): path.parent
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }


def test_every_package_is_in_the_wheel():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == set(package_folders())


def test_every_folder_with_python_is_a_package():
    folders = {module.path.parent for module in modules()}
    assert folders - set(package_folders().values()) == set(), "add __init__.py"


def test_every_data_file_is_in_the_wheel():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    folders = set(package_folders().values())
    forgotten = [
        path
        for path in tracked_files()
        if path.startswith(tuple(f"{folder}/" for folder in FOLDERS))
        and not path.endswith(".py")
        and not ((ROOT / path).parent in folders and any(fnmatch(Path(path).name, pattern) for pattern in patterns))
    ]
    assert forgotten == []


def test_the_configs_are_in_the_wheel_beside_their_data():
    """Inputs are relative to the config: `share/nat-finetune` has the same folders as the checkout."""
    shipped = PROJECT["tool"]["setuptools"]["data-files"]
    there = {f"{target.removeprefix('share/nat-finetune/')}/{Path(p).name}" for target, ps in shipped.items() for p in ps}
    used = {"configs/*.yml"} | {f"{path.parent.relative_to(ROOT)}/*.jsonl" for path in ROOT.glob("workflows/*/data/*.jsonl")}
    assert used <= there
    assert all(list(ROOT.glob(pattern)) for patterns in shipped.values() for pattern in patterns)


def test_entry_points_have_names_of_their_own_and_lead_somewhere():
    known = {module.name for module in modules()} | set(package_folders())
    for group, points in PROJECT["project"]["entry-points"].items():  # two equal names would not be TOML
        assert [value for value, count in Counter(points.values()).items() if count > 1] == []
        missing = {f"{group}: {name} = {value}" for name, value in points.items() if value.split(":")[0] not in known}
        assert missing == set()


def test_one_version():
    first = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert PROJECT["project"]["version"] == first[1] == version("nat-finetune")


def test_constraints_pin_every_dependency():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.split("==")[0]) for line in lines if "==" in line}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    wanted += PROJECT["project"]["optional-dependencies"]["gguf"]
    assert {normal(re.split(r"[<>=~ ;\[]", line)[0]) for line in wanted} - pinned == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ------------------------------------------------------------------------------------------------------ what is committed


def tracked_files() -> list[str]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: nothing says which files belong to it")
    return [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def test_nothing_of_one_machine_is_committed():
    # Written so that this file does not hold what it looks for.
    folders = "|".join(f"/{name}/" for name in ("work", "root", "farm", "home"))
    hosts = "|".join(("pypi" + r"\.org", "pythonhosted" + r"\.org", "download" + r"\.pytorch", "index" + "-url"))
    pattern = re.compile(rf"(?<![\w.}}*])({folders}|/tmp/{'bash'})|{hosts}")
    wrong = [
        f"{path}:{number}: {found[0]}"
        for path in tracked_files()
        if not path.endswith((".safetensors", ".gguf", ".png"))
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1)
        if (found := pattern.search(line))
    ]
    assert wrong == []


def test_tracked_files_are_small():
    assert [path for path in tracked_files() if (ROOT / path).stat().st_size > 3_000_000] == []
