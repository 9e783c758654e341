"""Updates as jobs: encoded, started once, watched, cancelled between optimiser steps, checked after their end."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nat_finetune.data.batches import Rows
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import BackendError, NatFinetuneError, NoTrainableSignal, Stage, boundary
from nat_finetune.local.agreement import BOUNDS, Canary, Scores, Seen, check_canaries, trained_scores, trainer_scores
from nat_finetune.local.checkpoint import load_checkpoint, save_checkpoint
from nat_finetune.local.drift import kl_of_fresh_samples
from nat_finetune.local.encoding import Encoded, encode
from nat_finetune.local.learner import make_learner, train_policy
from nat_finetune.local.optimise import Cancelled
from nat_finetune.local.pair_scores import PairScoring
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.settings import PreferenceSettings, UpdateSettings
from nat_finetune.types import (
    Collection,
    JobSpec,
    JobState,
    PairScore,
    PolicyRef,
    PreferencePair,
    Target,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

FRESH_SAMPLES = 4
"""Completions of each prompt from which the KL to the reference is estimated after an update on preferences."""


@dataclass(slots=True)
class Job:
    """One update."""

    spec: JobSpec
    encoded: Encoded
    seed: int
    task: asyncio.Task[UpdateResult] | None = None
    progress: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether it ended without a result: it may be prepared and submitted again."""
        return self.task is not None and self.task.done() and self.task.exception() is not None


class LocalTrainerAdapter:
    """Implements `interfaces.TrainerAdapter` in this process."""

    def __init__(
        self, settings: UpdateSettings, policy: LocalPolicy, *, target: Target, name: str, seed: int, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._target = target
        self._name = name
        self._seed = seed
        self._jobs: dict[str, Job] = {}
        self._unfit: str | None = None
        self._bound = settings.agreement_bound if settings.agreement_bound is not None else BOUNDS[policy.dtype]
        self._learner = make_learner(
            policy,
            settings.optimiser,
            lora=settings.lora,
            needs_reference=settings.algorithm.needs_reference,
            seed=seed,
            folder=folder,
        )
        self._fixed = Canary.fixed(policy.vocabulary, context=policy.max_context, seed=seed)
        with policy.exclusive():  # no checkpoint is loaded yet: this is the base
            [self._base_scores] = trainer_scores([self._fixed], self._learner.scorer)
        self._pairs = PairScoring(policy, self._learner, settings)

    @property
    def trained_parameters(self) -> int:
        """Number of weights that train."""
        return self._learner.weights.count

    async def health(self) -> None:
        """Raise BackendError if an update was broken off and left the weights somewhere in between."""
        if self._unfit is not None:
            raise BackendError(
                f"the weights are those of an unfinished update ({self._unfit}): resume from the last checkpoint"
            )

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Encode the items.

        Raises:
            NoTrainableSignal: nothing in them can be trained on.
            ConfigError, DataError: an item can't be encoded; says which and why.
        """
        self._hold(reference)
        encoded = await asyncio.to_thread(
            encode, collection, self._settings, self._policy, self._target, agreement_bound=self._bound
        )
        if not encoded.trained:
            raise NoTrainableSignal(
                f"step {collection.step}: of {len(collection.items)} items nothing can be trained on: {len(encoded.dropped)} "
                f"were dropped as too long, and {encoded.masked} trainable tokens have advantage 0"
            )
        spec = JobSpec(
            run_id=collection.run_id,
            step=collection.step,
            key=self._key(collection, encoded.objective.rows),
            adapter=self._name,
            items=len(encoded.objective.items),
            payload={"tokens_trained": encoded.trained, "tokens_masked": encoded.masked, "rows": len(encoded.objective.rows)},
            dropped=encoded.dropped,
        )
        known = self._jobs.get(spec.key)
        if known is None or known.failed:
            self._jobs = {key: job for key, job in self._jobs.items() if job.task is not None and not job.task.done()}
            self._jobs[spec.key] = Job(spec, encoded, derive_seed(self._seed, "update", collection.step))
        return spec

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Start the update; submitting the same key twice starts it once.

        Raises:
            BackendError: the spec was prepared by another process.
        """
        job = self._jobs.get(spec.key)
        if job is None:
            raise BackendError(f"step {spec.step}: this update was not prepared here; prepare the collection again")
        if job.task is None:
            await self.health()
            job.task = asyncio.create_task(self._run(job))
            job.task.add_done_callback(_seen)
        return TrainingJobRef(job_id=f"{spec.run_id}/{spec.step}", key=spec.key, adapter=self._name)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where it stands, with the share of its micro-batches that are done."""
        job = self._job(ref)
        if job.task is None:
            return TrainingJobStatus(JobState.PENDING, 0.0)
        if not job.task.done():
            return TrainingJobStatus(JobState.RUNNING, job.progress)
        error = job.task.exception()
        if error is None:
            return TrainingJobStatus(JobState.COMPLETED, 1.0)
        state = JobState.CANCELLED if isinstance(error, Cancelled) else JobState.FAILED
        return TrainingJobStatus(state, job.progress, str(error))

    async def wait(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Wait until it ends; when the waiting is cancelled, the update goes on."""
        job = self._job(ref)
        if job.task is not None:
            await asyncio.wait([job.task])
        return await self.status(ref)

    async def cancel(self, ref: TrainingJobRef) -> None:
        """Stop it before its next optimiser step, and wait for that."""
        self._job(ref).stop.set()
        await self.wait(ref)

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """A line for each optimiser step, and one for the check after them."""
        return list(self._job(ref).log)

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """What it did; the error that it ended with is raised as it was."""
        job = self._job(ref)
        if job.task is None:
            raise BackendError(f"the update of step {job.spec.step} was not submitted")
        return await asyncio.shield(job.task)

    async def score_pairs(self, pairs: Sequence[PreferencePair]) -> list[PairScore | None]:
        """What the policy makes of pairs that are held out; None of those that an update would drop as too long.

        Raises:
            DataError: a pair can't be encoded.
            BackendError: the model failed.
        """
        return await self._pairs.score(pairs)

    def save_state(self, folder: Path) -> None:
        """Write trained weights, AdamW's state and the counters; the folder is whole or not there."""
        if self._unfit is not None:
            raise BackendError(f"the weights are those of an unfinished update ({self._unfit}): not saved")
        learner = self._learner
        save_checkpoint(folder, learner.weights, learner.optimiser, version=self._policy.version, reference=learner.reference)

    def load_state(self, folder: Path) -> None:
        """Continue from such a folder."""
        with self._policy.exclusive():
            self._unfit = f"{folder} could not be loaded"
            learner = self._learner
            counters = load_checkpoint(folder, learner.weights, learner.optimiser, learner.reference)
            self._policy.restored(counters.version, counters.digest)
            self._unfit = None

    async def close(self) -> None:
        """Stop what still runs."""
        for job in self._jobs.values():
            job.stop.set()
        running = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        if running:
            await asyncio.wait(running)

    async def _run(self, job: Job) -> UpdateResult:
        made, steps = self._learner.optimiser, self._learner.optimiser.steps
        try:
            with boundary(Stage.MODEL):  # whatever torch raises: the weights may be somewhere in between
                return await self._update(job)
        except NatFinetuneError as error:
            job.log.append(str(error))
            if made.steps != steps:
                self._unfit = str(error)
            raise

    async def _update(self, job: Job) -> UpdateResult:
        settings = self._settings
        canary = Canary.of(
            job.encoded.objective.rows, job.encoded.drawn, count=settings.agreement_rows, max_tokens=settings.agreement_tokens
        )
        before, fixed_before = await self._before(job, canary)

        def progress(share: float) -> None:
            job.progress = share

        done = await asyncio.to_thread(
            train_policy,
            self._policy,
            self._learner,
            job.encoded.objective,
            self._settings.loop,
            (canary, self._fixed),
            seed=job.seed,
            progress=progress,
            cancelled=job.stop.is_set,
        )
        job.log += [_line(index, step) for index, step in enumerate(done.curve)]
        seen = Seen(
            before=before,
            engine=await self._policy.engine.score(canary.rows),
            trainer=done.canary_scores[0],
            fixed_before=fixed_before,
            fixed_engine=await self._policy.engine.score(self._fixed.rows),
            fixed_trainer=done.canary_scores[1],
            fixed_base=self._base_scores,
        )
        rounding = BOUNDS[self._policy.dtype]
        checks = check_canaries(seen, canary, bound=self._bound, rounding=rounding, changed=done.changed)
        checks |= await self._drift(job, canary)
        job.log.append(", ".join(f"{name} {value:.3g}" for name, value in checks.items()))
        return UpdateResult(
            policy=done.policy,
            tokens_trained=job.encoded.trained,
            tokens_masked=job.encoded.masked,
            optimiser_steps=len(done.curve),
            metrics={**done.metrics, **checks},
            seconds=done.seconds,
            curve=done.curve,
            reward_shares=job.encoded.reward_shares,
        )

    async def _before(self, job: Job, canary: Canary) -> tuple[Scores | None, Scores]:
        """What the engine makes of the canary, where the policy that is trained drew it, and of the fixed one."""
        engine = self._policy.engine
        fixed = await engine.score(self._fixed.rows)
        if job.encoded.drawn is None:
            return None, fixed
        return canary.drawn or trained_scores(canary, await engine.score(canary.rows)), fixed

    async def _drift(self, job: Job, canary: Canary) -> dict[str, float]:
        """How far an update on preferences has taken the policy from the reference."""
        if not isinstance(self._settings.algorithm, PreferenceSettings):
            return {}
        kl = await kl_of_fresh_samples(
            self._policy,
            self._learner,
            tuple(dict.fromkeys(prompt for prompt, _ in canary.rows)),
            samples=FRESH_SAMPLES,
            max_tokens=max(len(completion) for _, completion in canary.rows),
            seed=job.seed,
        )
        return {} if kl is None else {"kl_ref_fresh": kl}

    def _hold(self, reference: PolicyRef | None) -> None:
        """Make the reference the policy that is asked for: the one that is held already, or the policy as it is now."""
        held = self._learner.reference
        if reference is None or held is None or reference.version == held.version:
            return
        if reference.version != self._policy.version:
            raise BackendError(
                f"the weights of version {reference.version}, the reference that is asked for, are gone: the policy is "
                f"version {self._policy.version}, and the reference that is kept version {held.version}"
            )
        held.hold(reference.version)

    def _key(self, collection: Collection, rows: Rows) -> str:
        held = self._learner.reference
        about = (collection.run_id, collection.step, collection.warm_up, held.version if held else None, self._settings)
        digest = hashlib.sha256(repr(about).encode())
        for values in (rows.token_ids_N, rows.loss_mask_N, rows.starts, *(rows.columns[name] for name in sorted(rows.columns))):
            digest.update(values.tobytes())
        return digest.hexdigest()

    def _job(self, ref: TrainingJobRef) -> Job:
        if ref.key not in self._jobs:
            raise BackendError(
                f"no update {ref.job_id} in this process: it ended with the process that ran it; prepare it again"
            )
        return self._jobs[ref.key]


def _line(index: int, step: dict[str, float]) -> str:
    shown = ("loss", "grad_norm", "learning_rate", "clip_fraction", "entropy", "margin", "accuracy")
    return f"optimiser step {index}: " + ", ".join(f"{name} {step[name]:.4g}" for name in shown if name in step)


def _seen(task: asyncio.Task[UpdateResult]) -> None:
    """Take note of a task's error, which `result` raises: nobody may ask for it after Ctrl-C."""
    if not task.cancelled():
        task.exception()
