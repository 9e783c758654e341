"""The entries that `finetuning` names, and what refers to what in a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.compose import target_of
from nat_finetune.config.component import (
    ComponentConfig,
    LLMBaseConfig,
    Reference,
    TrainerAdapterConfig,
    TrajectoryBuilderConfig,
)
from nat_finetune.config.load import LoadedConfig
from nat_finetune.config.nodes import parse
from nat_finetune.config.resolved import resolved_values
from nat_finetune.config.schema import RunConfig
from nat_finetune.config.shape import Spot, spots
from nat_finetune.registry import Registry

Entry = tuple[str, str]
"""Section and name, such as `("llms", "policy")`."""

SECTIONS = ("llms", "functions", "ttc_strategies", "evaluators", "trajectory_builders", "trainer_adapters", "trainers")


def sections_of(config: RunConfig) -> Mapping[str, Mapping[str, ComponentConfig]]:
    """The sections that have entries, by name."""
    return {
        "llms": config.llms,
        "functions": config.functions,
        "ttc_strategies": config.ttc_strategies,
        "evaluators": config.eval.evaluators,
        "trajectory_builders": config.trajectory_builders,
        "trainer_adapters": config.trainer_adapters,
        "trainers": config.trainers,
    }


def builder_of(config: RunConfig) -> TrajectoryBuilderConfig | None:
    """The trajectory builder of the run."""
    return config.trajectory_builders.get(config.finetuning.trajectory_builder or "")


def adapter_of(config: RunConfig) -> TrainerAdapterConfig | None:
    """The trainer adapter of the run."""
    return config.trainer_adapters.get(config.finetuning.trainer_adapter or "")


def local_adapter_of(config: RunConfig) -> LocalTrainerAdapterConfig | None:
    """The same, where it trains in this process."""
    adapter = adapter_of(config)
    return adapter if isinstance(adapter, LocalTrainerAdapterConfig) else None


def target_llm_of(config: RunConfig) -> tuple[str, LLMBaseConfig | None]:
    """Name and config of the model that is trained."""
    name = target_of(config).llm
    return name, config.llms.get(name)


@dataclass(frozen=True, slots=True)
class References:
    """What refers to what: from each entry, and from the config outside of entries (`workflow`, `finetuning`)."""

    of: Mapping[Entry, frozenset[Entry]]
    roots: frozenset[Entry]
    """Named by what is no entry."""
    direct: Mapping[Entry, frozenset[Entry]] = field(default_factory=dict)
    """Those that the schema marks as references: a text that happens to be a name is left out."""

    def reached(self, start: frozenset[Entry]) -> frozenset[Entry]:
        """Everything that these refer to, they themselves included, however far away."""
        found, open_ends = set(start), list(start)
        while open_ends:
            fresh = self.of.get(open_ends.pop(), frozenset()) - found
            found |= fresh
            open_ends += fresh
        return frozenset(found)


def references(loaded: LoadedConfig, registry: Registry) -> References:
    """Read the references off the resolved values, defaults and all.

    A text in an entry that equals the name of another counts as a reference, to be on the safe side.
    """
    values = resolved_values(loaded.config, loaded.tree)
    tree = parse(yaml.safe_dump(values, sort_keys=False), str(loaded.path))
    entries = {(section, name) for section in SECTIONS for name in _names(loaded.config, section)}
    of: dict[Entry, set[Entry]] = {}
    direct: dict[Entry, set[Entry]] = {}
    roots: set[Entry] = set()
    for spot in spots(tree, registry):
        owner, named, marked = _owner(spot), set(_named(spot, entries)), _is_reference(spot)
        if owner is None:
            roots |= named if marked else set()
        else:
            of.setdefault(owner, set()).update(named)
            direct.setdefault(owner, set()).update(named if marked else ())
    return References({k: frozenset(v) for k, v in of.items()}, frozenset(roots), {k: frozenset(v) for k, v in direct.items()})


def _names(config: RunConfig, section: str) -> list[str]:
    return list(sections_of(config)[section])


def _owner(spot: Spot) -> Entry | None:
    path = spot.path[1:] if spot.path[:1] == ("eval",) else spot.path
    if path[:1] == ("workflow",):
        return ("workflow", "workflow")
    return (str(path[0]), str(path[1])) if len(path) > 2 and path[0] in SECTIONS else None


def _is_reference(spot: Spot) -> bool:
    return any(isinstance(mark, Reference) for mark in spot.shape.marks)


def _named(spot: Spot, entries: set[Entry]) -> Iterator[Entry]:
    text = spot.node.value
    if not isinstance(text, str):
        return
    sections = [mark.section for mark in spot.shape.marks if isinstance(mark, Reference)] or list(SECTIONS)
    yield from ((section, text) for section in sections if (section, text) in entries)
