"""Versions of the config schema, and how a file of an older one becomes one of today's: a list of edits, each with its reason.

    0   NeMo Agent Toolkit's own schema (1.9): a file without `config_version`
    1   this one

The same edits are made in memory when an older file is loaded (`migrated`) and in its text by `nat-finetune migrate`
(`config.rewrite`). A further version is a further entry of `MIGRATIONS`, with a test and an entry in CHANGELOG.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nat_finetune.config.nodes import Node, dotted
from nat_finetune.config.schema import CONFIG_VERSION

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """A key that goes."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: removed: {self.reason}"


@dataclass(frozen=True, slots=True)
class Put:
    """A key that gets a value; the mappings above it are made where they are missing."""

    path: Path
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.value}: {self.reason}"


Edit = Remove | Put


@dataclass(frozen=True, slots=True)
class Migration:
    """From one version to the next."""

    source: int
    summary: str
    edits: Callable[[Mapping[str, Any]], Iterator[Edit]]


def _from_nat(config: Mapping[str, Any]) -> Iterator[Edit]:
    """NAT 1.9: what has another place here goes there; what has no part in finetuning, or what NAT ignores itself, goes."""
    for path, reason in _WITHOUT_A_PART.items():
        if _at(config, path) is not None:
            yield Remove(path, reason)
    for section in ("trajectory_builders", "trainers"):
        for name, entry in _entries(config, section):
            if "reward" in entry:
                yield Remove((section, name, "reward"), "NAT overwrites it with finetuning.reward_function")
    for name, entry in _entries(config, "llms"):
        yield from _llm(("llms", name), entry)
    for name, entry in _entries(config, "trainer_adapters"):
        if _kind(entry) == "nemo_customizer_trainer_adapter":
            yield from _nemo_adapter(("trainer_adapters", name), entry)
    yield from _nemo_trainer(config)
    yield from _validation(config)
    yield from _art(config)
    finetuning = config.get("finetuning")
    if isinstance(finetuning, Mapping) and finetuning.get("enabled") and "calibration" not in finetuning:
        reason = "in NAT a dataset's answer need not be what the workflow returns, so a low score of it proves nothing"
        yield Put(("finetuning", "calibration", "on_problem"), "warn", reason)


_RUN_FOLDER = "a run's files go into its run folder, below finetuning.output_dir"
_SERVING = "it is about serving and observing, which have no part in finetuning"
_WITHOUT_A_PART: dict[Path, str] = {
    ("general",): _SERVING,
    ("telemetry",): _SERVING,
    ("front_end",): _SERVING,
    ("logging",): _SERVING,
    ("profiler",): _SERVING,
    ("eval", "general", "profiler"): _SERVING,
    ("eval", "general", "workflow_alias"): _SERVING,
    ("eval", "general", "per_input_user_id"): _SERVING,
    ("eval", "general", "output_dir"): _RUN_FOLDER,
    ("eval", "general", "output"): _RUN_FOLDER,
    ("eval", "general", "validate_llm_endpoints"): "endpoints are asked before anything is paid for in any case",
}


def _llm(path: Path, entry: Mapping[str, Any]) -> Iterator[Edit]:
    """NAT forwards keys that it does not know to the endpoint, and `nim` is `openai` at NVIDIA's address."""
    key = "type" if "_type" not in entry else "_type"
    if _kind(entry) == "nim":
        yield Put((*path, key), "openai", "`nim` speaks OpenAI's protocol")
        if "base_url" not in entry:
            yield Put((*path, "base_url"), "https://integrate.api.nvidia.com/v1", "NAT's default for `nim`")
        if "api_key" not in entry:
            yield Put((*path, "api_key"), "${NVIDIA_API_KEY}", "NAT's default for `nim`")
    if _kind(entry) in ("nim", "openai"):
        for name in ("top_logprobs",):
            if name in entry:
                yield Remove((*path, name), "NAT forwards it to the endpoint")
                yield Put((*path, "extra_body", name), entry[name], "keys for the endpoint stand in extra_body")


def _art(config: Mapping[str, Any]) -> Iterator[Edit]:
    """What OpenPipe ART takes in NAT's form and trains wrongly: groups of one, and samples of another distribution."""
    finetuning = config.get("finetuning")
    if not isinstance(finetuning, Mapping) or not _is_art(config, "trainer_adapters", finetuning.get("trainer_adapter")):
        return
    name = finetuning.get("trajectory_builder")
    builder = _at(config, ("trajectory_builders", str(name)))
    if _is_art(config, "trajectory_builders", name) and builder.get("num_generations") == 1:
        reason = "NAT would compare rollouts of different examples; one rollout of an example leaves nothing to compare it with"
        yield Put(("trajectory_builders", str(name), "num_generations"), LEAST_GENERATIONS, reason)
    llms = dict(_entries(config, "llms"))
    target = finetuning.get("target_model") or next(iter(llms), "")
    entry = llms.get(str(target), {})
    if entry.get("logprobs") and entry.get("temperature") not in (None, 1, 1.0):
        reason = "ART trains on the logprobs at temperature 1: sampled at another one, they are not those of what was sampled"
        yield Put(("llms", str(target), "temperature"), 1.0, reason)


def _is_art(config: Mapping[str, Any], section: str, name: Any) -> bool:
    entry = _at(config, (section, str(name)))
    kind = _kind(entry) if isinstance(entry, Mapping) else None
    return isinstance(kind, str) and kind.startswith("openpipe_art_")


NIM_IMAGE = "${NIM_IMAGE:?the NIM image that serves the trained model}"


def _nemo_adapter(path: Path, entry: Mapping[str, Any]) -> Iterator[Edit]:
    """What NeMo Customizer's adapter ignores in NAT, and the image that NAT has a wrong default for."""
    if entry.get("deploy_on_completion"):
        if _at(entry, ("deployment_config", "image_name")) is None:
            image, reason = _nim_image(str(entry.get("customization_config", "")))
            yield Put((*path, "deployment_config", "image_name"), image, reason)
    else:
        for key in ("deployment_config", "deployment_timeout_seconds"):
            if key in entry:
                yield Remove((*path, key), "nothing is deployed: deploy_on_completion is not set")
    if _at(entry, ("hyperparameters", "training_type")) == "sft" and _at(entry, ("hyperparameters", "dpo")) is not None:
        yield Remove((*path, "hyperparameters", "dpo"), "it has no part in training_type: sft")


def _nim_image(config: str) -> tuple[str, str]:
    """The image of the model that a customization config is of, by NVIDIA's naming."""
    model = config.partition("@")[0]
    nats = "NAT's default is the image of another model"
    if model.count("/") != 1 or "$" in model:
        return NIM_IMAGE, f"{nats}; say which one serves the trained model"
    return f"nvcr.io/nim/{model}", f"{nats}; this one is named as {model}: see that it serves the trained model"


def _nemo_trainer(config: Mapping[str, Any]) -> Iterator[Edit]:
    """What NAT's trainer for NeMo Customizer ignores."""
    named = _at(config, ("finetuning", "trainer"))
    entry = dict(_entries(config, "trainers")).get(str(named), {})
    if _kind(entry) != "nemo_customizer_trainer":
        return
    for key, reason in {
        "num_epochs": "NAT's trainer ignores it: hyperparameters.epochs is what counts",
        "curriculum_learning": "NAT's trainer ignores it",
    }.items():
        if _at(config, ("finetuning", key)) is not None:
            yield Remove(("finetuning", key), reason)


def _validation(config: Mapping[str, Any]) -> Iterator[Edit]:
    """What NAT keeps in `run_configuration` and fills from its command line."""
    given = _at(config, ("finetuning", "run_configuration"))
    if not isinstance(given, Mapping):
        return
    yield Remove(("finetuning", "run_configuration"), "NAT fills it from its command line; datasets have keys of their own")
    file, dataset = given.get("validation_dataset"), _at(config, ("eval", "general", "dataset"))
    if file is not None:
        kind = dataset.get("_type", "json") if isinstance(dataset, Mapping) else "json"
        path = ("finetuning", "validation", "dataset")
        yield Put((*path, "_type"), kind, "of the same kind as the training examples")
        yield Put((*path, "file_path"), file, "was run_configuration.validation_dataset")
        if given.get("validation_interval") is not None:
            at = ("finetuning", "validation", "interval")
            yield Put(at, given["validation_interval"], "was run_configuration.validation_interval")


LEAST_GENERATIONS = 4
"""Where NAT has one rollout an example."""
MIGRATIONS: tuple[Migration, ...] = (Migration(0, "NeMo Agent Toolkit's schema", _from_nat),)


def version_of(config: Mapping[str, Any]) -> Any:
    """The version that a file says it has; 0 where it says none."""
    found = config.get("config_version")
    return 0 if found is None else found


def edits_to_current(config: Mapping[str, Any]) -> list[Edit]:
    """What makes today's config of an older one; nothing for today's, and for a version that is not known."""
    version = version_of(config)
    if type(version) is not int or not 0 <= version < CONFIG_VERSION:
        return []
    found: list[Edit] = [Put(("config_version",), CONFIG_VERSION, "the schema that this file is written for")]
    for migration in MIGRATIONS[version:]:
        found += migration.edits(config)
    return found


def migrated(tree: Node) -> tuple[Node, list[str]]:
    """An older file's tree as today's, with a note for each change but that of the version."""
    if not isinstance(tree.value, dict):
        return tree, []
    edits = [edit for edit in edits_to_current(tree.plain()) if edit.path != ("config_version",)]
    for edit in edits:
        tree = _edited(tree, edit.path, edit)
    return tree, [str(edit) for edit in edits]


def _edited(node: Node, path: Path, edit: Edit) -> Node:
    key, rest = path[0], path[1:]
    entries = dict(node.mapping)
    if not rest and isinstance(edit, Remove):
        entries.pop(key, None)
    elif not rest and isinstance(edit, Put):
        old = entries.get(key, node)
        entries[key] = replace(_node(edit.value, old), key_mark=old.key_mark or node.mark)
    else:
        child = entries.get(key, Node({}, node.mark, node.key_mark or node.mark))
        entries[key] = _edited(child, rest, edit)
    return replace(node, value=entries)


def _node(value: Any, near: Node) -> Node:
    """Plain data as a tree that stands where `near` does."""
    if isinstance(value, Mapping):
        return Node({key: _node(item, near) for key, item in value.items()}, near.mark, near.mark)
    return Node([_node(item, near) for item in value] if isinstance(value, list) else value, near.mark)


def _at(config: Mapping[str, Any], path: Path) -> Any:
    """What stands at a path, None where nothing does."""
    found: Any = config
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _kind(entry: Mapping[str, Any]) -> Any:
    return entry.get("_type", entry.get("type"))


def _entries(config: Mapping[str, Any], section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries of a section that are mappings."""
    found = config.get(section)
    for name, entry in found.items() if isinstance(found, Mapping) else ():
        if isinstance(entry, Mapping):
            yield name, entry
