"""What an export is made of: a run's rollouts or a file of records, as a stream of items that know what they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Protocol

from nat_finetune.compose import Composition
from nat_finetune.config.schema import RunConfig, SplitConfig
from nat_finetune.data.exports.formats import Exported, ExportKind
from nat_finetune.data.exports.index import digest
from nat_finetune.data.keys import example_key
from nat_finetune.data.manifest import NAME, Manifest
from nat_finetune.data.pair_splits import context_text, pair_key
from nat_finetune.data.pairs import answer_in_context
from nat_finetune.data.preparation import dropped_pair
from nat_finetune.data.rewards import paid_rewards, unknown_rewards, weighted_sum
from nat_finetune.data.selection import is_judgment
from nat_finetune.data.splits import Row, SplitBy, ties
from nat_finetune.data.trajectories import is_target
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.held_pairs import PairData
from nat_finetune.interfaces import TrajectoryBuilder
from nat_finetune.preflight.holdout import DataSets, check_contexts, load_data
from nat_finetune.records import RecordSource
from nat_finetune.runstore import RunStore
from nat_finetune.types import Cause, Demonstration, Dropped, DropReason, Item, ModelCall, PreferencePair, Rollout, Target

_NOT_LOOKED = (
    "near-duplicates between training and validation rows were not looked for: pip install 'nat-finetune[splits]', or say "
    "--split-by task_key"
)


@dataclass(frozen=True, slots=True)
class Made:
    """One item of the stream."""

    item: Exported
    place: str
    """For messages: its reviewer record, or rollout and turn."""
    cluster: str | None
    """What else may only be on its side; None: what has the same context."""
    set_id: str | None = None
    judged: bool = False
    weight: float = 1.0
    task: str | None = None
    """The task key of its record."""


class Source(Protocol):
    """Items to export."""

    contexts_join: bool
    """Whether clusters that share a context are one; else a validation row whose context is trained is left out."""

    def stream(self) -> Iterator[Made | Dropped]:
        """All items, and everything that was left out; asked for once."""

    def joined(self) -> list[tuple[int, int]]:
        """Digests of context texts that belong together, and a check that none of them is held out."""

    def notes(self) -> list[str]:
        """What to know of them; complete behind `stream` and `joined`."""


ClusterOf = Callable[[PreferencePair | Demonstration], str | None]


@dataclass(slots=True)
class RecordItems:
    """Pairs of a file of judgments."""

    source: RecordSource
    cluster_of: ClusterOf
    data: DataSets
    config: RunConfig
    by: SplitBy
    notes_of_split: list[str]
    contexts_join: bool = True
    _rows: dict[str, tuple[Row, str]] = field(default_factory=dict)

    def stream(self) -> Iterator[Made | Dropped]:
        """All pairs."""
        kept = self.by == "near_duplicates" or self._held_out
        for item in self.source.build():
            for made in _made(item, self.cluster_of):
                if kept and isinstance(made, Made):
                    self._keep(made)
                yield made

    def joined(self) -> list[tuple[int, int]]:
        """Near-duplicates among the contexts."""
        rows = [row for row, _ in self._rows.values()]
        if self._held_out:
            self.notes_of_split += check_contexts(rows, [name for _, name in self._rows.values()], self.data, self.config)
        if self.by != "near_duplicates":
            return []
        split = self.config.finetuning.split or SplitConfig()
        found = ties(rows, by=self.by, threshold=split.threshold, seed=self.config.finetuning.seed)
        return [(digest(rows[tie.rows[0]].text), digest(rows[other].text)) for tie in found for other in tie.rows[1:]]

    def notes(self) -> list[str]:
        """How the records were read."""
        held = sum(count for side, count in self.source.pairs.items() if side != "train")
        left = [f"{held:,} pairs that finetuning.split holds out are left out"] if held else []
        return [f"{self.source.read:,} records of {self.source.key}", *self.source.builder.notes(), *left, *self.notes_of_split]

    @property
    def _held_out(self) -> bool:
        return self.data.holds_out

    def _keep(self, made: Made) -> None:
        text = context_text(made.item.context)
        key = f"{made.task!r} {digest(text)}"
        if key not in self._rows:
            self._rows[key] = (Row(key, text, made.task), made.place)


@dataclass(slots=True)
class RolloutItems:
    """Items that are built anew from the rollouts of a run."""

    store: RunStore
    build: Callable[[Iterable[Rollout]], Iterator[Made | Dropped]]
    notes_of_split: list[str]
    contexts_join: bool = False
    """Examples share contexts by nature (a game's positions): joined, all of them would be one cluster."""
    _count: int = 0
    _versions: set[int | None] = field(default_factory=set)

    def stream(self) -> Iterator[Made | Dropped]:
        """All items, of one rollout after the other."""
        return self.build(self._rollouts())

    def joined(self) -> list[tuple[int, int]]:
        """Nothing: what belongs together is said by the run's own clusters."""
        return []

    def notes(self) -> list[str]:
        """Which rollouts they are of."""
        versions = sorted(version for version in self._versions if version is not None)
        several = f", of policy versions {versions[0]} to {versions[-1]}" if len(versions) > 1 else ""
        return [f"{self._count:,} rollouts of {self.store.folder.name}{several}", *self.notes_of_split]

    def _rollouts(self) -> Iterator[Rollout]:
        for _, rollout in self.store.counted_rollouts():
            if "~" in rollout.rollout_id:
                continue  # an attempt that was retried
            self._count += 1
            self._versions.add(rollout.policy_version)
            yield rollout


async def open_source(
    config: RunConfig,
    parts: Composition,
    store: RunStore | None,
    kind: ExportKind,
    *,
    by: SplitBy | None,
    manifest: Manifest | None,
) -> Source:
    """What the config trains on.

    Args:
        config: names builder and datasets.
        parts: its components.
        store: the run whose rollouts are read, None without a run.
        kind: of the items that are wanted.
        by: how records are split; None: near-duplicates where they can be looked for.
        manifest: sides of examples that are given, so that nothing has to be found out.

    Raises:
        ConfigError: the builder needs rollouts and there is no run, or `by` would be ignored.
        DataError: a dataset can't be read, or held-out examples leak.
    """
    records = await parts.get_records()
    if records is not None:
        run_split = None if store is None else store.read_json(NAME)
        data = await load_data(config, parts, None if run_split is None else Manifest.from_dict(run_split))
        if manifest is None:
            records.split = data.pairs.split  # what the run holds out is not exported
        else:
            data = replace(data, pairs=PairData())  # the manifest says what is held out
        looking = find_spec("datasketch") is not None
        chosen = "task_key" if manifest is not None else by or ("near_duplicates" if looking else "task_key")
        notes = [] if by is not None or looking or manifest is not None else [_NOT_LOOKED]
        source = RecordItems(records, _listed(manifest) if manifest is not None else _task, data, config, chosen, notes)
        source.contexts_join = manifest is None
        return source
    if store is None:
        raise ConfigError(
            Problem("builds from rollouts: give the folder of a run that has some", key="finetuning.trajectory_builder")
        )
    if by is not None:
        raise ConfigError("--split-by would be ignored: the examples of a run belong together as its finetuning.split says")
    clusters, notes = ({}, []) if manifest is not None else await _clusters(config, parts, store)
    if kind == "rollouts":
        return RolloutItems(store, _rollout_items(parts.target, clusters), notes)
    return RolloutItems(store, _built(await parts.get_trajectory_builder(), clusters), notes)


def kind_of(config: RunConfig, asked: ExportKind | None, *, from_run: bool) -> ExportKind:
    """Which items are exported: what is asked for, else what the builder makes.

    Raises:
        ConfigError: they can't be made.
    """
    name = config.finetuning.trajectory_builder or ""
    builder = config.trajectory_builders.get(name)
    if builder is None:
        raise ConfigError(Problem("names no trajectory builder: there is nothing to export", "finetuning.trajectory_builder"))
    made: dict[str, ExportKind] = {"pair": "pairs", "demonstration": "demonstrations", "group": "rollouts"}
    kind = asked or made[builder.makes]
    fits = {"pairs": {"pair"}, "demonstrations": {"pair", "demonstration"}, "rollouts": {"pair", "demonstration", "group"}}
    if builder.makes not in fits[kind]:
        raise ConfigError(f"--items {kind} can't be made of what trajectory_builders.{name} makes: {made[builder.makes]}")
    if kind == "rollouts" and not (from_run and builder.record_dataset() is None):
        raise ConfigError("--items rollouts needs the folder of a run that has rollouts")
    if kind == "rollouts" and not config.finetuning.rewards:
        raise ConfigError(Problem("--items rollouts writes rewards, and none is trained", "finetuning.reward_function"))
    return kind


async def _clusters(config: RunConfig, parts: Composition, store: RunStore) -> tuple[Mapping[str, str], list[str]]:
    split = store.read_json(NAME)
    data = await load_data(config, parts, None if split is None else Manifest.from_dict(split))
    return data.clusters["train"], [*data.notes, *data.warnings]


def _built(builder: TrajectoryBuilder, clusters: Mapping[str, str]) -> Callable[[Iterable[Rollout]], Iterator[Made | Dropped]]:
    def build(rollouts: Iterable[Rollout]) -> Iterator[Made | Dropped]:
        for item in builder.build(rollouts):
            yield from _made(item, lambda item: _cluster(clusters, example_key(item.provenance.example_id)))

    return build


def _rollout_items(target: Target, clusters: Mapping[str, str]) -> Callable[[Iterable[Rollout]], Iterator[Made | Dropped]]:
    def build(rollouts: Iterable[Rollout]) -> Iterator[Made | Dropped]:
        for rollout in rollouts:
            reason = _unusable(rollout, target)
            calls = [call for call in rollout.model_calls if is_target(call, target)]
            if reason is None and calls:
                cluster = _cluster(clusters, example_key(rollout.example_id))
                rewards = paid_rewards(rollout.rewards, target.rewards)
                yield from (_call(call, rollout, target, rewards, cluster) for call in calls)
            else:
                yield Dropped("rollout", reason or DropReason.NO_TRAINED_CALL, "", rollout.example_id, rollout.rollout_id)

    return build


def _unusable(rollout: Rollout, target: Target) -> DropReason | None:
    if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
        return DropReason.INFRASTRUCTURE_FAILURE
    rewards = paid_rewards(rollout.rewards, target.rewards)
    return DropReason.UNKNOWN_REWARD if unknown_rewards(rewards, target) else None


def _call(
    call: ModelCall, rollout: Rollout, target: Target, rewards: Mapping[str, float | None], cluster: str | None
) -> Made | Dropped:
    place = f"{rollout.rollout_id}, call {call.seq}"
    if call.tools:
        detail = "tools were offered to the model, which the file would not say"
        return Dropped("call", DropReason.NOT_IN_FORMAT, detail, rollout.example_id, rollout.rollout_id, call.seq)
    said = {key: value for key, value in call.message.items() if key in ("role", "content", "tool_calls")}
    item = Exported(call.messages, said, reward=weighted_sum(rewards, target.rewards), rewards=rewards)
    return Made(item, place, cluster)


def _made(item: Item | Dropped, cluster_of: ClusterOf) -> Iterator[Made | Dropped]:
    if isinstance(item, PreferencePair):
        yield _pair(item, cluster_of(item))
    elif isinstance(item, Demonstration):
        said = Exported(item.context, {"role": "assistant", "content": item.completion})
        yield Made(said, _place(item), cluster_of(item), weight=item.weight)
    elif isinstance(item, Dropped):
        yield item


def _pair(pair: PreferencePair, cluster: str | None) -> Made | Dropped:
    if answer_in_context(pair.context, pair.chosen, pair.rejected):
        return dropped_pair(pair, DropReason.ANSWER_IN_CONTEXT)
    item = Exported(
        pair.context,
        {"role": "assistant", "content": pair.chosen},
        {"role": "assistant", "content": pair.rejected},
        context_text=pair.context_text,
        scores=_scores(pair),
    )
    return Made(item, _place(pair), cluster, pair.set_id, is_judgment(pair), pair.weight, pair.provenance.task_key)


def _scores(pair: PreferencePair) -> tuple[float, float] | None:
    if pair.margin is None or pair.chosen_score is None or pair.rejected_score is None:
        return None
    return pair.chosen_score, pair.rejected_score


def _place(item: PreferencePair | Demonstration) -> str:
    where = item.provenance
    return where.record or f"{where.rollout_id}, turn {where.turn_id!r}"


def _cluster(clusters: Mapping[str, str], key: str) -> str:
    return f"task {clusters.get(key, key)}"


def _task(item: PreferencePair | Demonstration) -> str | None:
    task = item.provenance.task_key
    return None if task is None else f"task {task}"


def _listed(manifest: Manifest) -> ClusterOf:
    """By the context where the manifest is that of a run on records, else by the id of the record."""

    def listed(item: PreferencePair | Demonstration) -> str | None:
        context = pair_key(item) if isinstance(item, PreferencePair) else None
        return f"task {context if context in manifest.sides else example_key(item.provenance.example_id)}"

    return listed
