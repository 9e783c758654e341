"""The steps of a run, as trainers order them: each persists its result before it returns, and finds it again on resume.

What a crash leaves behind decides what a resume does:

* rollouts that finished are in `events.jsonl` and are used, not run again (with `deterministic: true` an unfinished collection
  is done anew, so that a resumed run equals an uninterrupted one bit for bit);
* an update that finished is in the checkpoint; one that did not is computed again, from the same rollouts and weights; a
  job that outlives the process is found again instead (`steps/job.py`);
* an evaluation that finished is in `evaluations/`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.ledger import Ledger
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.selection import SelectionRules, select_pairs
from nat_finetune.errors import NoTrainableSignal
from nat_finetune.interfaces import Built, Round, Step, WarningBuilder
from nat_finetune.records import RecordSource
from nat_finetune.report.diagnosis import Evidence, no_signal_message, nothing_left_message, unscored_message
from nat_finetune.report.metrics import drop_counts, rollout_metrics, sampled_tokens, segment_counts
from nat_finetune.report.preferences import falling_warning, preferences_metrics
from nat_finetune.report.progress import Progress
from nat_finetune.rollout_service import RolloutRequest, requests_for
from nat_finetune.runstore import RunStore, checkpoint_name
from nat_finetune.steps.best import best_checkpoint, patience_message
from nat_finetune.steps.collected import Collected, is_final, require_few_failures
from nat_finetune.steps.hand_over import handed_over
from nat_finetune.steps.job import Jobs
from nat_finetune.steps.parts import Parts, RolloutSource, evidence
from nat_finetune.steps.schedule import EpochSchedule, RoundSchedule
from nat_finetune.steps.selection import Curriculum, Ending, SignalWatch, curriculum_rules, further_examples
from nat_finetune.steps.serving import require_served, unserved
from nat_finetune.steps.timing import Stopwatch
from nat_finetune.types import Collection, Dropped, Example, Group, Item, PolicyRef, PreferencePair, Rollout, UpdateResult


class Run:
    """Implements `interfaces.TrainingRun` over a run folder."""

    def __init__(
        self, store: RunStore, config: FinetuningConfig, examples: Sequence[Example], parts: Parts, progress: Progress
    ) -> None:
        self._store = store
        self._config = config
        self._examples = list(examples)
        self._parts = parts
        self._progress = progress
        self._jobs = Jobs(parts.adapter, store, progress, parts.cancel_wanted)
        self.state = store.state()
        self.policy = self.state.policy or PolicyRef(llm=parts.target.llm, version=0)
        self._ledger = Ledger.from_dict(self.state.ledger)
        self._collected = Collected(store, config.max_failure_rate)
        self._uncommitted: list[Rollout] = []
        self._metrics: dict[str, Any] = {}
        self._timed = Stopwatch(self.state.seconds)
        self._exhausted = False
        self._validation_seconds = 0.0
        self._total = 1
        self._step: Step | None = None
        rules = curriculum_rules(config)
        self._curriculum = Curriculum(rules, self.state, parts.target, config.seed) if rules is not None else None
        self._signal = SignalWatch(self.state, config, parts.target, parts.best, signal_steps=1)

    def resume(self) -> None:
        """Load the checkpoint and find the rollouts that were finished after it."""
        store, state = self._store, self.state
        store.metrics.truncate(state.metrics_offset)
        store.dropped.truncate(state.dropped_offset)
        if state.checkpoint is not None:
            self._parts.adapter.load_state(store.checkpoint(state.checkpoint))
        self._collected.find(state.events_offset)

    # ------------------------------------------------------------------------------------------------- what trainers order

    async def steps(self) -> AsyncIterator[Step]:
        """`num_epochs` passes over the examples, each in an order of its own, from the first step that is not done."""
        schedule = EpochSchedule(self._config, self._examples)
        self._plan(schedule.total, signal_steps=schedule.per_epoch)
        if self.state.steps_done:
            await self._look_again(schedule.step(self.state.steps_done - 1))
        for index in range(self.state.steps_done, schedule.total):
            if self._over:
                return
            yield schedule.step(index)

    async def rounds(self, count: int, *, passes: int, warm_ups: int = 0) -> AsyncIterator[Round]:
        """`count` rounds of `passes` over the examples and `num_epochs` updates each, from the first that is not done."""
        schedule = RoundSchedule(self._config, self._examples, passes=passes, rounds=count, warm_ups=warm_ups)
        self._plan(schedule.total, signal_steps=1)
        for made in schedule.rounds():
            if made.updates[-1].index < self.state.steps_done:
                await self._look_again(made.updates[-1])
            elif not self._over:
                yield made

    async def pending(self, steps: Sequence[Step]) -> AsyncIterator[Step]:
        """Those of a round's updates that are not in the checkpoint; none any more once the training has reached its end."""
        for step in steps:
            if step.index < self.state.steps_done:
                await self._look_again(step)
            elif not self._over or self._uncommitted:  # what was collected is accounted for even if nothing comes of it
                yield step

    def hold_reference(self) -> None:
        """From now on preferences are held against the policy as it is now."""
        self.state.reference = self.policy

    async def collect(self, step: Step) -> list[Rollout]:
        """Run the workflow on the step's examples, as often as the builder asks for; where it reads records, nothing.

        Raises:
            RolloutFailureLimit: more failed than `max_failure_rate`.
            NoTrainableSignal: more have no score than `max_unscored_rate`.
        """
        self._step = step
        source = self._parts.source
        if isinstance(source, RecordSource):
            self._metrics = self._step_metrics(step)
            return []
        if step.index < self.state.steps_done:
            return require_few_failures(self._collected.committed(step.index), self._config.max_failure_rate)
        requests = requests_for(step.index, step.examples, source.builder.generations, self._config.seed)
        if self._config.deterministic and not self._jobs.submitted_from(step.index):
            self._collected.collect_anew(step.index, {request.rollout_id for request in requests})
        return await self._run(step, requests, source)

    async def _run(self, step: Step, requests: Sequence[RolloutRequest], source: RolloutSource) -> list[Rollout]:
        """Those of the requested rollouts that are not done yet; returns all of them."""
        done = self._collected.unfinished(step.index, {request.rollout_id for request in requests})
        finished = {rollout.rollout_id for rollout in done}
        missing = [request for request in requests if request.rollout_id not in finished]
        if missing:
            require_served(self._parts.adapter, self.policy, self._store)
        self._progress.stage_started(step.index, "collect", len(requests))
        for rollout in done:
            self._progress.advanced(is_final(rollout), sampled_tokens(rollout))

        def keep(rollout: Rollout) -> None:
            self._store.add_rollout(step.index, rollout)
            self._progress.advanced(is_final(rollout), sampled_tokens(rollout))

        with self._timed("collect"):
            fresh = await source.service.run(
                missing,
                policy_version=self.policy.version,
                trained_rewards=self._parts.target.needed_scores,
                on_done=keep,
                beside=done,
            )
        rollouts = sorted([*done, *fresh], key=lambda rollout: rollout.rollout_id)
        self._uncommitted += rollouts
        self._metrics = self._step_metrics(step)
        require_few_failures(rollouts, self._config.max_failure_rate)
        names, limit = self._parts.target.needed_scores, self._config.max_unscored_rate
        message = unscored_message(self._evidence(rollouts), names, limit)
        if message is not None:
            raise self._stopped(step.index, message)
        return rollouts

    def build(self, rollouts: Sequence[Rollout], *, step: int) -> Built:
        """Apply the trajectory builder, to the rollouts or to the records that it reads."""
        source = self._parts.source
        items: list[Item] = []
        dropped: list[Dropped] = []
        with self._timed("build"):
            for made in source.build() if isinstance(source, RecordSource) else source.builder.build(rollouts):
                if isinstance(made, Dropped):
                    dropped.append(made)
                else:
                    items.append(made)
        built = Built(step, tuple(items), tuple(dropped))
        if isinstance(source, RecordSource):
            self._metrics["records"] = source.about()
            warnings = [*self._parts.check_records(items), *source.warnings(dropped)]
        else:
            warnings = source.builder.warnings(built) if isinstance(source.builder, WarningBuilder) else []
        for text in warnings:
            self.warn(text)
        return built

    async def select(self, built: Built, rules: SelectionRules | None = None) -> Collection:
        """Apply the trainer's filters; an empty collection is an outcome of its own, and ends the training when it repeats.

        Raises:
            NoTrainableSignal: there was nothing to train on for `finetuning.flat_patience` steps in a row (or a whole epoch, if
                that is fewer), and never before: after an update the run ends as finished, with a warning.
        """
        built = await self._refilled(built)
        items, dropped = list(built.items), list(built.dropped)
        if self._curriculum is not None:
            groups = [item for item in items if isinstance(item, Group)]
            chosen, left_out = self._curriculum.choose(groups, dropped, step=built.step, epoch=self._metrics["epoch"])
            items, dropped = list(chosen), [*dropped, *left_out]
            self._metrics["curriculum"] = {"percentile": self.state.curriculum["percentile"], "of_groups": len(groups)}
        pairs = [item for item in built.items if isinstance(item, PreferencePair)]
        if pairs:
            selected = select_pairs(pairs, rules or SelectionRules(), seed=derive_seed(self._config.seed, "max_pairs"))
            items, dropped = list(selected.pairs), [*dropped, *selected.dropped]
            self._metrics["preferences"], warnings = preferences_metrics(selected, self._config)
            for text in warnings:
                self.warn(text)
        collection = Collection(tuple(items), self._store.folder.name, built.step, self._parts.target.llm, tuple(dropped))
        ending = self._signal.look(items, self._uncommitted)
        if ending is not None:
            self._end(ending, collection)
        return collection

    async def update(self, collection: Collection, step: Step, *, wait: bool = True) -> UpdateResult | None:
        """Have the adapter train on the collection, then commit checkpoint, metrics and ledger together."""
        again = collection.step != step.index  # another pass over items that an earlier step accounted for
        if again:
            self._metrics = self._step_metrics(step)
        collection = replace(collection, step=step.index, dropped=() if again else collection.dropped)
        trains = collection.items or collection.handed_over
        result, left_out = await self._train(collection, wait) if trains else (None, ())
        if result is None:
            self._progress.warning(f"step {collection.step}: nothing to train on, no update")
        else:
            self.policy = result.policy
            falling = None if collection.warm_up else falling_warning(result.curve)
            if falling is not None:
                self.warn(falling)
        self._account(collection, left_out)
        self._metrics |= {
            "kept": len(collection.items) - sum(drop.what != "trajectory" for drop in left_out),
            "dropped": {} if again else drop_counts([*collection.dropped, *left_out]),
            "segments": segment_counts(self._uncommitted, collection),
            "update": dict(result.metrics) if result else None,
            "seconds": dict(self._timed.step),
            "advantage_share": dict(result.reward_shares) if result else {},
        }
        self._metrics["tokens"]["trained"] = result.tokens_trained if result else 0
        self._store.metrics.append(self._metrics)
        self._timed.step.clear()
        self._uncommitted = []
        self._commit(step)
        self._progress.step_finished(self._metrics)
        if self._parts.budget is not None and step.index + 1 < self._total:
            self._stop_for(self._parts.budget.step_done(self.state.seconds.get("test", 0.0) + self._validation_seconds))
        return result

    async def hand_over(self) -> None:
        """Have the backend, which runs the rollouts itself, do the whole training as one job."""
        self._plan(1, signal_steps=1)
        step, collection = handed_over(self._config, self._examples, self._parts, self._store.folder.name)
        if not self.state.steps_done:
            self._metrics = self._step_metrics(step)
            await self.update(collection, step)
        await self.validate_if_due(step)

    async def validate_if_due(self, step: Step) -> None:
        """Evaluate on the validation set where the schedule says so; ends the training where `patience` is at its end."""
        if not step.validated:
            return
        await self.validate(step.index + 1)
        settings = self._config.validation
        message = patience_message(best_checkpoint(self._store, settings), settings)
        if step.index + 1 < self._total:
            self._stop_for(message)

    async def validate(self, steps_done: int) -> None:
        """Evaluate on the validation set, unless that was done before the run was stopped."""
        name = f"validation-{steps_done:05d}"
        if self._parts.validation is None or self._store.evaluation(name) is not None or self.is_unserved("validated"):
            return
        self._progress.stage_started(steps_done, "validate", None)
        with self._timed("validate"):
            result = await self._parts.validation.evaluate(self.policy)
        self._validation_seconds = result.seconds
        self._store.save_evaluation(name, result)
        self._progress.evaluated("validation", steps_done, result)

    def warn(self, text: str) -> None:
        """Say something on the console and in the report."""
        if text not in self.state.warnings:
            self.state.warnings.append(text)
            self._progress.warning(text)

    def is_unserved(self, what: str) -> bool:
        """Whether the policy can't be sampled from; then says that, and why, it is not measured or validated."""
        self.state.unmeasured = why = unserved(self._parts.adapter, self.policy, self._store)
        if why is not None:
            self.warn(f"the trained model was not {what}: {why}")
        return why is not None

    def take_best(self) -> None:
        """Load the checkpoint that the validation set chose; the last one stays where nothing chooses."""
        best = best_checkpoint(self._store, self._config.validation)
        if best is not None and best.checkpoint != self.state.checkpoint:
            self._parts.adapter.load_state(self._store.checkpoint(best.checkpoint))
            self.policy = best.policy

    # ------------------------------------------------------------------------------------------------------------- inside

    def _stop_for(self, message: str | None) -> None:
        """Training ends with this step, if there is a reason."""
        if message is not None:
            self._exhausted = True
            self.warn(f"training ends here: {message}")

    @property
    def _over(self) -> bool:
        """Whether training ends before its last step."""
        return self._exhausted or self.state.ended is not None

    async def _look_again(self, step: Step) -> None:
        """Before the first step that a resumed run does: the validation that may be missing, and what it says of going on."""
        if step.index == self.state.steps_done - 1:
            await self.validate_if_due(step)

    def _plan(self, total: int, *, signal_steps: int) -> None:
        """Say how many steps there are, and how many of them without signal are a whole epoch."""
        self._total = total
        self._signal = SignalWatch(self.state, self._config, self._parts.target, self._parts.best, signal_steps)
        self._progress.planned(total, min(self.state.steps_done, total))

    def _step_metrics(self, step: Step) -> dict[str, Any]:
        position = {"step": step.index, "epoch": step.epoch, "policy_version": self.policy.version}
        return position | rollout_metrics(self._uncommitted, self._parts.target)

    def _end(self, ending: Ending, collection: Collection) -> None:
        """Training ends with this step; where nothing was trained and nothing is mastered, the run fails."""
        steps, evidence = (
            self.state.steps_without_signal,
            self._evidence(self._uncommitted),
        )
        if ending is Ending.NOTHING_LEFT:
            self.warn(nothing_left_message(steps, evidence))
        elif self.policy.version == 0:
            raise self._stopped(collection.step, no_signal_message(steps, collection.dropped, evidence), collection.dropped)
        else:
            self.warn(f"training ends here: {no_signal_message(steps, collection.dropped, evidence)}")
        self.state.ended = ending.value

    def _stopped(self, step: int, message: str, dropped: Sequence[Dropped] = ()) -> NoTrainableSignal:
        """The error that ends the run; a resume, after an evaluator was mended, collects the step anew."""
        left_out = {"kept": 0, "dropped": drop_counts(dropped), "segments": {}, "update": None}
        self._metrics["tokens"]["trained"] = 0
        self._store.metrics.append(self._metrics | left_out | {"seconds": dict(self._timed.step)})
        self._list(step, dropped)
        self._store.restart_step(step)
        return NoTrainableSignal(message)

    def _list(self, step: int, dropped: Sequence[Dropped]) -> None:
        self._store.dropped.extend({"step": step, **asdict(drop)} for drop in dropped)

    def _evidence(self, rollouts: Sequence[Rollout]) -> Evidence:
        return evidence(rollouts, self._parts, curriculum_rules(self._config), self._store)

    async def _refilled(self, built: Built) -> Built:
        """Flat groups are replaced: further examples are run until the step has as many groups as examples, or the limit."""
        source, settings, step = self._parts.source, self._config.dynamic_sampling, self._step
        if settings is None or step is None or isinstance(source, RecordSource):
            return built
        further = further_examples(self._examples, step, self._config.seed, settings.max_extra_examples)
        before, taken = len(built.items), 0
        while (missing := len(step.examples) - len(built.items)) > 0 and taken < len(further):
            more, first = further[taken : taken + missing], len(step.examples) + taken
            requests = requests_for(step.index, more, source.builder.generations, self._config.seed, first=first)
            extra = self.build(await self._run(step, requests, source), step=built.step)
            built = Built(built.step, (*built.items, *extra.items), (*built.dropped, *extra.dropped))
            taken += len(more)
        self._collected.discard(step.index)
        self._metrics["dynamic_sampling"] = {"extra_examples": taken, "extra_groups": len(built.items) - before}
        return built

    async def _train(self, collection: Collection, wait: bool) -> tuple[UpdateResult, tuple[Dropped, ...]]:
        """What the update did, and which items the backend could not take."""
        self._progress.stage_started(collection.step, "update", None)
        with self._timed("update"):
            return await self._jobs.run(collection, self.state.reference, wait=wait)

    def _account(self, collection: Collection, left_out: Sequence[Dropped] = ()) -> None:
        self._ledger.add(self._uncommitted, collection, self._parts.target, left_out)
        self._ledger.add_superseded(self._collected.superseded)
        self._list(collection.step, [*collection.dropped, *left_out])
        self._collected.superseded = []
        self.state.ledger = self._ledger.to_dict()

    def _commit(self, step: Step) -> None:
        """Save a checkpoint where one is due, and make everything so far the state that a resume starts from."""
        state, done, settings = self.state, step.index + 1, self._config.validation
        chosen_among = settings is not None and settings.select is not None and step.validated
        if done % self._config.checkpoint_interval and done < self._total and not chosen_among and state.ended is None:
            return
        name = checkpoint_name(done)
        with self._timed("checkpoint"):
            self._parts.adapter.save_state(self._store.new_checkpoint(name))
        state.steps_done, state.checkpoint, state.policy = done, name, self.policy
        self._store.commit(state)
        best = best_checkpoint(self._store, settings)
        self._store.keep_newest_checkpoints(self._config.keep_checkpoints, also=best.checkpoint if best else None)
