"""Trains on an `art run` server: groups become one train request for each step, and the new step is sampled from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from nat_finetune_plugins.openpipe_art import canary, stream
from nat_finetune_plugins.openpipe_art.config import ArtTrainerAdapterConfig
from nat_finetune_plugins.openpipe_art.connection import SERVICE, Connection, connect
from nat_finetune_plugins.openpipe_art.trajectories import convert
from nat_finetune_plugins.openpipe_art.updates import Updates
from nat_finetune_plugins.openpipe_art.wire import train_body

from nat_finetune.errors import BackendError
from nat_finetune.interfaces import Builder
from nat_finetune.remote.target import served_target
from nat_finetune.types import (
    Collection,
    Group,
    JobSpec,
    JobState,
    PolicyRef,
    Target,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

_CHECKPOINT = "art.json"


class ArtTrainerAdapter:
    """Implements `remote.interfaces.RemoteAdapter`, and `StreamedAdapter`."""

    def __init__(
        self, config: ArtTrainerAdapterConfig, connection: Connection, *, target: Target, name: str, folder: Path | None
    ) -> None:
        self._config = config
        self._art = connection
        self._target = target
        self._name = name
        self._folder = folder
        self._bodies: dict[str, dict[str, Any]] = {}  # the one that was prepared last, by its hash
        self._updates = Updates(connection, folder, idle_timeout=config.idle_timeout, patience=config.lost_stream_seconds)
        self._loaded = False
        self._noise: float | None = None

    async def health(self) -> None:
        """Raise BackendError unless the server is well and its endpoint serves the current step.

        Where there is no run (a look at a config), also where a run would be refused: another one has trained the model.
        """
        art = self._art
        await art.server.health()
        await art.ask_step()
        if self._folder is None:
            art.require_equal_steps()
        names = await art.inference.names()
        if art.current_step == art.step and art.name not in names:
            raise BackendError(f"{art.endpoint.base_url} does not serve {art.name}, but {', '.join(names) or 'nothing'}")

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Check the server's step, and encode the groups; what ART can't train on is left out, and counted.

        Raises:
            BackendError: something else has trained the model, or nothing of the collection can be trained on.
        """
        art, training = self._art, self._config.training
        await art.ask_step()
        art.require_equal_steps()
        groups = [item for item in collection.items if isinstance(item, Group)]
        if len(groups) < len(collection.items):
            raise BackendError("openpipe_art_trainer_adapter takes groups of rollouts, found other items")
        made = convert(groups, self._target, art.dialect, art.current_step)
        if not made.groups:
            reasons = {drop.reason.value: drop.detail for drop in made.dropped}
            raise BackendError(f"ART could train on none of {len(groups)} groups: {json.dumps(reasons)}")
        await self._listen_to_the_noise()
        body = train_body(art.model, art.dialect, made.groups, learning_rate=training.learning_rate, kl=training.beta)
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        self._bodies = {digest: body}
        payload = {
            "service": f"{SERVICE} {art.dialect.generation}",
            "host": art.url,
            "model": f"{art.model.project}/{art.model.name}",
            "base_model": art.model.base_model,
            "step_before": art.current_step,
            "version_before": art.policy.version,
            "body_sha256": digest,
            "groups": len(made.groups),
            "trajectories": made.trajectories,
            "tokens": made.tokens,
            "learning_rate": training.learning_rate,
            "kl": training.beta,
        }
        key = hashlib.sha256(f"{collection.run_id} {collection.step} {digest}".encode()).hexdigest()
        return JobSpec(collection.run_id, collection.step, key, self._name, len(collection.items), payload, made.dropped)

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Send the request, unless the server's step says that it was sent before."""
        found = await self.find(spec)
        if found is not None:
            return found
        body = self._bodies.get(str(spec.payload["body_sha256"]))
        if body is None:
            raise BackendError(f"the update of step {spec.step} was prepared by another process: prepare it again")
        if self._config.backend.delete_old_checkpoints:
            await self._art.server.delete_checkpoints(self._art.model, self._art.dialect, self._needed_steps())
        self._updates.send(int(spec.payload["step_before"]), spec.step, body)
        return self._ref(spec)

    async def find(self, spec: JobSpec) -> TrainingJobRef | None:
        """The update of this spec, if it was made: the server's step says so."""
        made = await self._updates.was_made(int(spec.payload["step_before"]), spec.step)
        return self._ref(spec) if made else None

    async def lost(self, ref: TrainingJobRef) -> bool:
        """As `Updates.lost`."""
        return await self._updates.lost(ref)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """As `Updates.status`."""
        return await self._updates.status(ref)

    async def wait(
        self, ref: TrainingJobRef, *, on_status: Callable[[TrainingJobStatus], None] | None = None
    ) -> TrainingJobStatus:
        """As `Updates.wait`."""
        return await self._updates.wait(ref, on_status)

    async def cancel(self, ref: TrainingJobRef) -> None:
        """As `Updates.cancel`."""
        await self._updates.cancel(ref)

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """The lines of its stream."""
        return [stream.shown(line) for line in self._updates.lines(ref) or []]

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """What it did; from now on the new step is sampled from, after the canary has answered from it.

        Raises:
            BackendError: it was not made, or made without an optimiser step, or something else trains the model too.
            AgreementError: what is served is what was served before.
        """
        art, before = self._art, int(ref.metadata["step_before"])
        status = await self.status(ref)
        if status.state is not JobState.COMPLETED:
            raise BackendError(f"{art.url}: the update from step {before} is {status.state.value}: {status.message}")
        if await art.ask_step() != before + 1:
            raise BackendError(
                f"{art.url}: in one update the model went from step {before} to {art.step}: something else trains it"
            )
        lines, update = self._updates.lines(ref) or [], self._updates.sent(before)
        whole = update is not None and update.cut is None
        steps = stream.steps_done(lines) or (0 if whole else None)
        if steps == 0:
            raise BackendError(
                f"{art.url}: ART went to step {before + 1} without an optimiser step: it found nothing to train on in "
                f"{ref.metadata['groups']} groups (are the conversations longer than init_args.max_seq_length?)"
            )
        earlier = art.answer
        art.point(int(ref.metadata["version_before"]) + 1)
        answer = await art.ask_canary()
        moved = None if earlier is None or update is None else canary.require_moved(earlier, answer, art.name)
        curve = stream.curve(lines)
        means = stream.means(curve)
        ended = "no process read it to its end" if update is None else update.cut or "whole"
        return UpdateResult(
            policy=art.policy,
            tokens_trained=stream.trained_tokens(lines),
            tokens_masked=None,
            optimiser_steps=steps,
            metrics=means | ({} if moved is None else {"canary_moved": moved}),
            seconds=time.monotonic() - update.began if update is not None else 0.0,
            curve=curve,
            backend=self._told(ref, ended, means, moved),
        )

    def serving(self) -> bool:
        """Whether the current policy can be sampled from."""
        return self._art.serves_it

    def save_state(self, folder: Path) -> None:
        """Write which step of which model this is: the weights are the server's."""
        kept = self._identity() | {"version": self._art.policy.version, "step": self._art.current_step}
        (folder / _CHECKPOINT).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Sample from that step.

        Raises:
            BackendError: the server has another model, or has not got that far, or went on without this run.
        """
        art, path, wanted = self._art, folder / _CHECKPOINT, self._identity()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            version, step = int(kept["version"]), int(kept["step"])
            found = {key: kept[key] for key in wanted}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{path} is no checkpoint of openpipe_art_trainer_adapter: {error!r}") from error
        if found != wanted or step != art.start_step + version:
            raise BackendError(f"{path} is of {found} at step {step}, the config says {wanted} from step {art.start_step} on")
        art.point(version)
        resumes = not self._loaded and self._updates.none_sent and self._folder is not None
        self._loaded = True
        if step > art.step or (resumes and art.step > step + 1):  # one step on: an update that was not committed
            art.require_equal_steps()

    async def close(self) -> None:
        """Drop the connections; a stream that is still read ends."""
        await self._updates.close()
        await self._art.inference.close()

    async def _listen_to_the_noise(self) -> None:
        """Ask the canary once more before an update: how far the same model's answers are apart."""
        art, earlier = self._art, self._art.answer
        again = await art.ask_canary()
        self._noise = None if earlier is None else canary.distance(earlier, again)

    def _identity(self) -> dict[str, str]:
        model = self._art.model
        return {"project": model.project, "name": model.name, "base_model": model.base_model}

    def _ref(self, spec: JobSpec) -> TrainingJobRef:
        payload = spec.payload
        kept = ("host", "model", "step_before", "version_before", "groups", "trajectories", "learning_rate", "kl")
        metadata = {key: payload[key] for key in kept} | {"step": spec.step}
        return TrainingJobRef(f"{payload['model']}@{int(payload['step_before']) + 1}", spec.key, self._name, metadata)

    def _needed_steps(self) -> set[int]:
        """The current step, and those of the checkpoints that the run keeps."""
        needed = {self._art.current_step}
        for path in sorted(self._folder.glob(f"checkpoints/*/{_CHECKPOINT}")) if self._folder is not None else ():
            with suppress(OSError, ValueError, KeyError):
                needed.add(int(json.loads(path.read_text(encoding="utf-8"))["step"]))
        return needed

    def _told(self, ref: TrainingJobRef, ended: str, losses: Mapping[str, float], moved: float | None) -> dict[str, Any]:
        art = self._art
        return {
            "service": f"{SERVICE} {art.dialect.generation}",
            "hosts": [art.url, art.endpoint.base_url],
            "output_model": f"{art.model.project}/{art.model.name}",
            "checkpoint": f"step {art.current_step} on the server",
            "deployment": f"{art.name} at {art.endpoint.base_url}",
            "losses": dict(losses),
            "stream": ended,
            "canary": {"moved": moved, "noise": self._noise},
            "sent": {key: ref.metadata[key] for key in ("groups", "trajectories", "learning_rate", "kl")},
        }


@asynccontextmanager
async def connected(config: ArtTrainerAdapterConfig, builder: Builder) -> AsyncIterator[ArtTrainerAdapter]:
    """An adapter that is connected; the target model's calls go to the server's endpoint from here on."""
    target, llm = await served_target(builder), builder.target.llm
    connection, service = await connect(config, target, llm, builder.folder)
    adapter = ArtTrainerAdapter(config, connection, target=builder.target, name=builder.entry_name, folder=builder.folder)
    try:
        yield adapter
    finally:
        await adapter.close()
        await service.close()
