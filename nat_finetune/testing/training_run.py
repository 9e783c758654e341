"""A run in memory for trainers: it hands out steps, takes orders, writes them down, and can be killed and resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nat_finetune.config.component import ItemKind
from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.selection import SelectionRules
from nat_finetune.interfaces import Built, Round, Step
from nat_finetune.steps.schedule import EpochSchedule, RoundSchedule
from nat_finetune.testing.items import demonstration, pair, trajectory
from nat_finetune.testing.rollouts import FakeRecorder
from nat_finetune.types import Collection, Example, Group, Item, PolicyRef, Rollout, UpdateResult

Order = tuple[Any, ...]
"""(method, step, ...), as `FakeTrainingRun.orders` lists them."""
NOTHING_RAISES: Mapping[tuple[str, int], BaseException] = MappingProxyType({})


class Killed(BaseException):
    """The process is gone: nothing that a trainer may catch."""


class FakeTrainingRun:
    """Implements `interfaces.TrainingRun`: four examples, two epochs, steps of two examples.

    `raises` maps (method, how often it was called before) to what it raises then. `killed_after` orders the process is gone.
    `resumed` is a run that was killed: what it committed is not done again.
    """

    def __init__(
        self,
        makes: ItemKind = "group",
        *,
        raises: Mapping[tuple[str, int], BaseException] = NOTHING_RAISES,
        killed_after: int | None = None,
        resumed: FakeTrainingRun | None = None,
    ) -> None:
        self.orders: list[Order] = []
        """What was ordered, in this process."""
        self.updates: list[Order] = list(resumed.updates) if resumed else []
        """What was trained and committed: (step, warm-up, items, version of the reference), those of `resumed` first."""
        self.warnings: list[str] = []
        self.built: list[Built] = []
        self.collected: list[Rollout] = []
        self._makes = makes
        self._raises = dict(raises)
        self._killed_after = killed_after
        self.committed_reference: int = resumed.committed_reference if resumed else 0
        """Version of the policy that preferences are held against, as of the last update."""
        self._reference = self.committed_reference
        self._config = FinetuningConfig(num_epochs=2, examples_per_step=2)
        self._examples = [Example(number, f"input {number}") for number in range(4)]
        self.used_steps = False
        """Whether the trainer asked for steps of `examples_per_step` examples."""
        self.planned: list[int] = []
        """Indices of the updates that are to be made."""

    async def steps(self) -> AsyncIterator[Step]:
        """As `TrainingRun.steps`."""
        self.used_steps = True
        schedule = EpochSchedule(self._config, self._examples)
        self.planned = list(range(schedule.total))
        for index in range(self._done, schedule.total):
            yield schedule.step(index)

    async def rounds(self, count: int, *, passes: int, warm_ups: int = 0) -> AsyncIterator[Round]:
        """As `TrainingRun.rounds`."""
        rounds = list(RoundSchedule(self._config, self._examples, passes=passes, rounds=count, warm_ups=warm_ups).rounds())
        self.planned = [step.index for made in rounds for step in (*made.warm_ups, *made.updates)]
        for made in rounds:
            if made.updates[-1].index >= self._done:
                yield made

    async def pending(self, steps: Sequence[Step]) -> AsyncIterator[Step]:
        """As `TrainingRun.pending`."""
        for step in steps:
            if step.index >= self._done:
                yield step

    def hold_reference(self) -> None:
        """As `TrainingRun.hold_reference`."""
        self._order("hold_reference")
        self._reference = len(self.updates)

    async def collect(self, step: Step) -> list[Rollout]:
        """As `TrainingRun.collect`: two rollouts of each example."""
        self._order("collect", step.index)
        rollouts = [_rollout(step.index, example, generation) for example in step.examples for generation in (0, 1)]
        self.collected += rollouts
        return rollouts

    def build(self, rollouts: Sequence[Rollout], *, step: int) -> Built:
        """As `TrainingRun.build`: an item of each example's rollouts."""
        self._order("build", step, tuple(rollout.rollout_id for rollout in rollouts))
        examples = dict.fromkeys(rollout.rollout_id.rpartition("-")[0] for rollout in rollouts)
        built = Built(step, tuple(_item(self._makes, name) for name in examples), ())
        self.built.append(built)
        return built

    async def select(self, built: Built, rules: SelectionRules | None = None) -> Collection:
        """As `TrainingRun.select`: everything."""
        self._order("select", built.step, rules)
        return Collection(built.items, "run", built.step, "policy")

    async def update(self, collection: Collection, step: Step, *, wait: bool = True) -> UpdateResult | None:
        """As `TrainingRun.update`; a job that is not waited for is one that has ended all the same."""
        self._order("update", step.index, collection.warm_up, *([] if wait else ["not waited for"]))
        self.updates.append((step.index, collection.warm_up, tuple(map(_name, collection.items)), self._reference))
        self.committed_reference = self._reference
        policy = PolicyRef("policy", len(self.updates))
        return UpdateResult(policy, 1, 0, 1, {"loss": 0.0}, 0.0) if collection.items else None

    async def hand_over(self) -> None:
        """As `TrainingRun.hand_over`."""
        self.planned, self.used_steps = [0], True  # all of `finetuning` that is about steps goes to the backend
        if self._done:
            return
        self._order("hand_over")
        self.updates.append((0, False, (), self._reference))

    def warn(self, text: str) -> None:
        """As `TrainingRun.warn`."""
        self.warnings.append(text)

    async def validate_if_due(self, step: Step) -> None:
        """As `TrainingRun.validate_if_due`."""
        self._order("validate_if_due", step.index)

    @property
    def _done(self) -> int:
        return 1 + max((index for index, *_ in self.updates), default=-1)

    def _order(self, method: str, *about: Any) -> None:
        before = sum(order[0] == method for order in self.orders)
        if self._killed_after is not None and len(self.orders) >= self._killed_after:
            raise Killed
        self.orders.append((method, *about))
        if (method, before) in self._raises:
            raise self._raises[method, before]


def _rollout(step: int, example: Example, generation: int) -> Rollout:
    record = FakeRecorder(f"{step}.{example.id}", generation=generation)
    record.model_call("yes" if generation else "no")
    return record.rollout(rewards={"outcome": float(generation)})


def _item(makes: ItemKind, name: str) -> Item:
    if makes == "pair":
        return pair("yes", "no", text=name)
    if makes == "demonstration":
        return demonstration("yes", text=name)
    members = [trajectory((1,), (2,), (-1.0,), float(n), rollout=f"{name}-{n}") for n in (0, 1)]
    return Group(1, tuple(members))


def _name(item: Item) -> str:
    if isinstance(item, Group):
        return item.trajectories[0].rollout_id.rpartition("-")[0]
    return str(item.context[0]["content"])
