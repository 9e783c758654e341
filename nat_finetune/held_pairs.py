"""Preference pairs that a run holds out, of the records that it trains on or of others, and what is measured on them.

`preference_accuracy` is the share of pairs whose chosen completion the policy finds more probable than the rejected one.
`preference_reward_accuracy` is the share whose chosen completion gained more over the reference policy (DPO's implicit reward).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from nat_finetune.compose import Composition
from nat_finetune.config.held_out import HELD_OUT, HeldOutSide, held_out_settings, share
from nat_finetune.config.schema import PAIR_METRICS, RunConfig, SplitConfig
from nat_finetune.data.manifest import Manifest, manifest_for
from nat_finetune.data.pair_splits import pair_clusters, pair_key, split_pairs
from nat_finetune.data.splits import SIDES, SplitBy
from nat_finetune.errors import ConfigError, DataError, Problem
from nat_finetune.interfaces import PairScorer
from nat_finetune.records import PairSides, RecordSource
from nat_finetune.types import Dropped, PreferencePair


@dataclass(frozen=True, slots=True)
class HeldPairs:
    """The held-out pairs of one side."""

    pairs: tuple[PreferencePair, ...]
    keys: tuple[str, ...]
    """Of each pair, other than any example's: its record and a digest of what it says, the same in every evaluation."""
    clusters: Mapping[str, str]
    """By key: what a pair is not independent of."""
    source: str
    """Where the config names them."""

    @property
    def described(self) -> dict[str, int]:
        """How many they are, for the run folder."""
        contexts = len({pair_key(pair) for pair in self.pairs})
        return {"pairs": len(self.pairs), "contexts": contexts, "clusters": len(set(self.clusters.values()))}


@dataclass(frozen=True, slots=True)
class PairData:
    """What is held out of preference records; empty where the run trains on none, or holds none out."""

    held: Mapping[HeldOutSide, HeldPairs] = field(default_factory=dict)
    split: PairSides | None = None
    """Where the records that are trained on were split."""
    manifest: Manifest | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def load_pairs(config: RunConfig, parts: Composition, kept: Manifest | None) -> PairData:
    """Read the records of which pairs are held out, and hold them out.

    Raises:
        DataError: records can't be read or used, or a side has no pairs.
        ConfigError: near-duplicates are asked for without the package that finds them.
    """
    source = await parts.get_records()
    if source is None:
        return PairData()
    data = _part(source, config, kept) if any(share(config, side) for side in HELD_OUT) else PairData()
    held, warnings, notes = dict(data.held), list(data.warnings), list(data.notes)
    for side in HELD_OUT:
        settings = held_out_settings(config, side)
        if settings is not None and settings.records is not None:
            own = await parts.get_records_of(settings.records, f"finetuning.{side}.records")
            pairs, dropped = _read(own)
            clusters = pair_clusters(pairs, by=_by(config), threshold=_split(config).threshold, seed=config.finetuning.seed)
            held[side] = _held(pairs, clusters, own.key)
            notes.append(f"{len(pairs):,} pairs of {own.key} are held out")
            warnings += [f"{own.key}: {text}" for text in own.warnings(dropped)]
    return PairData(held, data.split, data.manifest, tuple(notes), tuple(warnings))


def _part(source: RecordSource, config: RunConfig, kept: Manifest | None) -> PairData:
    split, seed = _split(config), config.finetuning.seed
    pairs, _ = _read(source)
    if kept is None and split.manifest:
        kept = manifest_for(Path(split.manifest), {pair_key(pair) for pair in pairs})
    sides = kept.sides if kept is not None else None
    shares = {"validation": split.validation, "test": split.test}
    made = split_pairs(pairs, **shares, by=split.by, threshold=split.threshold, seed=seed, kept=sides)
    by_side = {"train": made.train, "validation": made.validation, "test": made.test}
    for side in HELD_OUT:
        if shares[side] and not by_side[side]:
            raise DataError(
                f"finetuning.split.{side}: {shares[side]:g} of the contexts of {len(pairs):,} pairs leaves none, for no "
                "cluster of contexts that belong together is that small; give a larger share or more records"
            )
    if not made.train:
        raise DataError(f"finetuning.split: nothing of {len(pairs):,} pairs is left to train on; give smaller shares")
    how = "task key" if split.by == "task_key" else f"task key, else near-duplicates (from {split.threshold:g} alike)"
    counts = ", ".join(f"{len(by_side[side]):,} {side}" for side in SIDES)
    bridges = f"; {len(made.dropped):,} left out, for they belong to two sides" if made.dropped else ""
    return PairData(
        {side: _held(by_side[side], made.clusters, source.key) for side in HELD_OUT if shares[side]},
        PairSides(made.sides, made.bridges),
        Manifest(made.sides),
        (f"split of {source.key} by {how}: {counts} pairs{bridges}",),
        tuple(f"{drop.record} is left out: {drop.detail}" for drop in made.dropped[:5]),
    )


def _split(config: RunConfig) -> SplitConfig:
    return config.finetuning.split or SplitConfig()


def _by(config: RunConfig) -> SplitBy:
    """As the config asks; where it does not say, near-duplicates if they can be looked for."""
    looking = config.finetuning.split is not None or find_spec("datasketch") is not None
    return _split(config).by if looking else "task_key"


def _read(source: RecordSource) -> tuple[list[PreferencePair], list[Dropped]]:
    made = list(source.build())
    pairs = [item for item in made if isinstance(item, PreferencePair)]
    if not pairs:
        raise DataError(f"{source.key}: {source.read:,} records make no preference pair, and some should be held out")
    return pairs, [item for item in made if isinstance(item, Dropped)]


def _held(pairs: Sequence[PreferencePair], clusters: Mapping[str, str], source: str) -> HeldPairs:
    seen: Counter[str] = Counter()
    keys = []
    for pair in pairs:
        said = blake2b(repr((pair_key(pair), pair.chosen, pair.rejected)).encode(), digest_size=6).hexdigest()
        key = f"{pair.provenance.record} {said}"
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key} {seen[key]}")
    by_key = {key: clusters[pair_key(pair)] for key, pair in zip(keys, pairs, strict=True)}
    return HeldPairs(tuple(pairs), tuple(keys), by_key, source)


@dataclass(frozen=True, slots=True)
class PairEvaluation:
    """Held-out pairs and who scores them."""

    held: HeldPairs
    scorer: PairScorer

    async def scores(self) -> dict[str, dict[str, float | None]]:
        """Metric → key of pair → 1 where the policy is with the judge, 0 where it is not, 0.5 for a tie, None if unknown.

        Raises:
            ConfigError: the adapter does not say what became of every pair.
        """
        found = await self.scorer.score_pairs(self.held.pairs)
        if len(found) != len(self.held.pairs):
            raise ConfigError(Problem(f"{len(found)} scores for {len(self.held.pairs)} held-out pairs", self.held.source))
        margins = [None if one is None else one.margin for one in found]
        gained = [None if one is None else one.reward_margin for one in found]
        return {
            name: {key: _right(gap) for key, gap in zip(self.held.keys, gaps, strict=True)}
            for name, gaps in zip(PAIR_METRICS, (margins, gained), strict=True)
        }


def _right(gap: float | None) -> float | None:
    if gap is None:
        return None
    return 0.5 if gap == 0 else float(gap > 0)
