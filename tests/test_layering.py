"""Imports go downwards only: the picture in the header of LAYERS is kept true here."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.source_tree import FOLDERS, ROOT, Module, imports, modules

LAYERS: tuple[set[str], ...] = (
    {"types", "errors", "whole_file"},  # 0: the words
    {"algorithms", "data", "config", "registry"},  # 1: pure
    {
        "interfaces",
        "answers",
        "tracing",
        "runstore",
        "remote",
        "rounds",
        "local",
    },  # 2: the seams, what remote backends share, the torch room
    {"builders", "trainers", "adapters", "evaluators", "datasets", "llms", "strategies"},  # 3: chosen by name in YAML
    # 4: the story of a run
    {
        "compose",
        "live",
        "run",
        "steps",
        "records",
        "remote_jobs",
        "held_pairs",
        "preflight",
        "finetune",
        "rollout_service",
        "served_rollouts",
        "rollout_server",
        "evaluate",
        "exports",
    }
    | {"exports", "checks", "report", "testing", "templates"},
    {"cli"},  # 5: the only place that prints
)
COMPONENT_LAYER = 3
PACKAGES = tuple(FOLDERS.values())
TORCH_ROOMS = (
    "nat_finetune.algorithms",
    "nat_finetune.local",
    "nat_finetune.data.batches",
)
"""The only places that may load torch when they are imported."""
HEAVY = ("torch", "transformers", "peft", "accelerate", "safetensors")


def room(module: str) -> tuple[str, ...]:
    """What is one room: a folder or file of the core, one plugin, one workflow."""
    return tuple(module.split(".")[:2])


def layer(module: str) -> int:
    package, *rest = module.split(".")
    if package != "nat_finetune":
        return COMPONENT_LAYER
    if not rest:
        return 0  # the package itself: `__version__`
    return next(level for level, rooms in enumerate(LAYERS) if rest[0] in rooms)


def own_imports(module: Module):
    return [found for found in imports(module) if found.target.split(".")[0] in PACKAGES]


def test_every_room_has_a_layer():
    rooms = {module.name.split(".")[1] for module in modules() if module.name.startswith("nat_finetune.")}
    assert rooms - set().union(*LAYERS) == set(), "a new room: give it a layer in LAYERS and in docs"


def test_imports_go_downwards():
    wrong = [
        f"{module.place}:{found.line}: layer {layer(module.name)} imports {found.target} of layer {layer(found.target)}"
        for module in modules()
        for found in own_imports(module)
        if layer(found.target) > layer(module.name)
    ]
    assert wrong == []


def test_components_do_not_know_one_another():
    wrong = [
        f"{module.place}:{found.line}: imports {found.target}"
        for module in modules()
        for found in own_imports(module)
        if layer(module.name) == layer(found.target) == COMPONENT_LAYER and room(module.name) != room(found.target)
    ]
    assert wrong == []


def test_algorithms_know_tensors_and_numbers_only():
    wrong = [
        f"{module.place}:{found.line}: imports {found.target}"
        for module in modules()
        if module.name.startswith("nat_finetune.algorithms.")
        for found in own_imports(module)
        if not found.target.startswith(("nat_finetune.algorithms", "nat_finetune.errors"))
    ]
    assert wrong == []


def test_no_cycles():
    """Neither by late imports nor under TYPE_CHECKING: a cycle is one module in two files."""
    graph = {module.name: {found.target for found in own_imports(module)} - {module.name} for module in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import one another: {' → '.join(reversed(error.args[1]))}")


BACKENDS = {"nemo_customizer", "nemo_rl", "openpipe_art", "trl"}
"""Services and libraries before they are plugins: the core reads and writes their data formats, and NAT's names of them."""


def test_core_names_no_plugin_and_no_workflow():
    names = {"nat_finetune_plugins", "nat_finetune_workflows"}
    for folder in ("plugins", "workflows"):
        names |= {path.name for path in (ROOT / folder).iterdir() if (path / "__init__.py").is_file()} - BACKENDS
    names |= {name.replace("_", "-") for name in names}
    wrong = [
        f"{module.place}: {name}"
        for module in modules()
        if module.name.startswith("nat_finetune.")
        for name in sorted(names)
        if re.search(rf"(?<!\w){name}", module.path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_only_the_torch_rooms_import_torch():
    wrong = [
        f"{module.place}:{found.line}: imports {found.target} when it is imported; do it in the function that needs it"
        for module in modules()
        if not module.name.startswith(TORCH_ROOMS) and not module.is_script
        for found in imports(module)
        if found.at_import_time and found.target.split(".")[0] in HEAVY
    ]
    assert wrong == []


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_every_other_module_loads_no_torch():
    """What the source can't show: a torch room that is imported by a module that must be light."""
    names = [
        m.name for m in modules() if not m.name.startswith(TORCH_ROOMS) and (not m.is_script or m.name.endswith("cli.main"))
    ]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'transformers', 'peft'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} loads {sorted(heavy)}'\n"
    )
    run_python(program, *names)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("list",), *[("validate", path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob("configs/*.yml"))]],
    ids=" ".join,
)
def test_light_commands_load_no_torch(arguments):
    program = (
        "import sys\n"
        "from nat_finetune.cli.main import main\n"
        "sys.argv[0] = 'nat-finetune'\n"
        "try:\n"
        "    code = main()\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "heavy = {'torch', 'transformers', 'peft'} & set(sys.modules)\n"
        "assert not heavy, f'loads {sorted(heavy)}'\n"
        "sys.exit(code)\n"
    )
    run_python(program, *arguments)
