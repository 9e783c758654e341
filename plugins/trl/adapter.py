"""`trl_trainer_adapter`: an update is a program that TRL's Python runs; what it trained is sampled from here afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nat_finetune_plugins.trl.environment import TESTED, environment_of, misfits, versions
from nat_finetune_plugins.trl.outcome import OUTPUT, Outcome, read_outcome, status_of
from nat_finetune_plugins.trl.prepared import MODEL, TOLD, Start, linked, prepare
from nat_finetune_plugins.trl.settings import TRLTrainerAdapterConfig

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import AgreementError, BackendError, OutputError
from nat_finetune.local.settings import LoraSettings
from nat_finetune.remote import process
from nat_finetune.remote.polling import follow
from nat_finetune.types import (
    Collection,
    JobSpec,
    JobState,
    PolicyRef,
    Target,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

if TYPE_CHECKING:
    from nat_finetune.local.policy import LocalPolicy

_WEIGHTS, _COUNTERS = "weights", "trl.json"
_FOLDER = "trl"
"""Below the run's folder."""


class TRLTrainerAdapter:
    """Implements `remote.interfaces.RemoteAdapter` by programs on this machine that outlive this process."""

    def __init__(
        self,
        config: TRLTrainerAdapterConfig,
        policy: LocalPolicy,
        *,
        target: Target,
        name: str,
        seed: int,
        folder: Path | None,
    ) -> None:
        self._config = config
        self._policy = policy
        self._target = target
        self._name = name
        self._seed = seed
        self._run = folder
        self._versions: dict[str, str | None] | None = None
        if config.lora is not None:
            from nat_finetune.local.lora import attach_lora

            lora = LoraSettings(config.lora.rank, config.lora.alpha, config.lora.target_modules)
            policy.attach(attach_lora(policy.model, lora, seed=derive_seed(seed, "lora")))

    async def health(self) -> None:
        """TRL's environment is there, and is one that the programs were tested with."""
        if self._versions is not None:
            return
        lacks = self._config.lacks()
        if lacks is not None:
            raise BackendError(f"trainer_adapters.{self._name}.{lacks}")
        names = tuple(name for name in TESTED if name != "peft" or self._config.lora is not None)
        found = await versions(self._config.python, names)
        wrong = misfits(found)
        missing = [name for name in names if found[name] is None]
        if missing or (wrong and not self._config.any_version):
            hint = "" if missing else "; any_version: true runs it all the same"
            raise BackendError(
                f"trainer_adapters.{self._name}: {self._config.python} is not the environment that is expected: "
                f"{'; '.join(wrong)}. Make one: pip install 'trl==1.16.*' peft datasets{hint}"
            )
        self._versions = found

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Write what the job reads into the run's folder.

        Raises:
            NoTrainableSignal: no item is left.
            ConfigError, DataError: an item can't be encoded, or the config does not fit the data.
        """
        start = Start(self._config, self._policy, self._target, self._seed, self._run_folder, self._reference(reference))
        made = await asyncio.to_thread(prepare, start, collection, self._run_folder / _FOLDER)
        self._keep_reference(reference, made.folder)
        payload = {
            "program": made.program,
            "prepared": f"{_FOLDER}/{made.folder.name}",
            "version": self._policy.version,
            "tokens": made.tokens,
            "optimiser_steps": made.optimiser_steps,
            "python": self._config.python,
            "host": socket.gethostname(),
        }
        return JobSpec(collection.run_id, collection.step, made.key, self._name, made.items, payload, made.dropped)

    async def find(self, spec: JobSpec) -> TrainingJobRef | None:
        """The job's folder says whether any process has started it."""
        folder = self._job_folder(spec)
        return self._ref(spec, await process.who_runs(folder)) if process.started(folder) else None

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Start the program, in a process group of its own, unless it was started before."""
        folder, prepared = self._job_folder(spec), self._run_folder / str(spec.payload["prepared"])
        if not (prepared / TOLD).is_file():
            raise BackendError(f"{prepared} is gone, which the job of step {spec.step} reads: resume, it is prepared again")
        folder.mkdir(parents=True, exist_ok=True)
        program = prepared / f"{spec.payload['program']}.py"
        command = [self._config.python, "-u", str(program), str(folder), str(prepared)]
        who = await process.start(folder, command, cwd=folder, environment=environment_of(os.environ))
        return self._ref(spec, who)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where it stands, with the last losses."""
        folder = self._folder_of(ref)
        seen = await asyncio.to_thread(process.look, folder, self._who(ref))
        lines = [] if seen.running else await self.logs(ref)
        return status_of(seen, folder, lines)

    async def wait(
        self, ref: TrainingJobRef, on_status: Callable[[TrainingJobStatus], None] = lambda status: None
    ) -> TrainingJobStatus:
        """Follow it to its end; when the waiting is cancelled, it goes on."""
        return await follow(
            lambda: self.status(ref),
            interval=self._config.poll_seconds,
            timeout=self._config.timeout_seconds,
            max_failures=5,
            on_status=on_status,
            what=f"TRL's job {ref.job_id}",
        )

    async def cancel(self, ref: TrainingJobRef) -> None:
        """End the whole process group, the rollout service included."""
        await process.end(self._folder_of(ref), self._who(ref), grace=self._config.grace_seconds)

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """What the program has written."""
        text, _ = await asyncio.to_thread(process.read_log_from, self._folder_of(ref), 0)
        return text.splitlines()

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """Take the trained weights over, and hold the engine against TRL on the same tokens.

        Raises:
            BackendError: the job failed, with its reason; or trained nothing.
            AgreementError: the engine gives other log-probabilities than TRL did.
        """
        from nat_finetune.local.take_over import take_over

        status = await self.status(ref)
        if status.state is not JobState.COMPLETED:
            raise BackendError(f"TRL's job {ref.job_id} is {status.backend_state}: {status.message}")
        folder, before = self._folder_of(ref), self._policy.digest
        outcome = await asyncio.to_thread(read_outcome, folder)
        version = int(ref.metadata["version"]) + 1
        policy = await asyncio.to_thread(take_over, self._policy, folder / OUTPUT, version=version)
        if self._policy.version == version and policy.digest == before and outcome.optimiser_steps == 0:
            raise BackendError(f"TRL's job {ref.job_id} made no optimiser step: nothing was trained")
        prepared = self._run_folder / str(ref.metadata["prepared"])
        apart = await self._agreement(prepared, outcome)
        shutil.rmtree(prepared / MODEL, ignore_errors=True)  # the weights that it began with; they are the largest part
        return UpdateResult(
            policy=policy,
            tokens_trained=ref.metadata["tokens"],
            tokens_masked=None if ref.metadata["tokens"] is None else 0,
            optimiser_steps=outcome.optimiser_steps,
            metrics={**outcome.metrics, "agreement_max": apart},
            seconds=outcome.seconds,
            curve=outcome.curve,
            backend=self._about(ref, outcome),
        )

    def serving(self) -> bool:
        """Always: what was trained was taken over."""
        return True

    def save_state(self, folder: Path) -> None:
        """Write the trained weights, and their version."""
        from nat_finetune.local.export import export_adapter, export_merged

        unfinished = folder.with_name(f"{folder.name}.unfinished")
        told = {"version": self._policy.version, "digest": self._policy.digest}
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (export_merged if self._config.lora is None else export_adapter)(self._policy, unfinished / _WEIGHTS)
            (unfinished / _COUNTERS).write_text(json.dumps(told) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise OutputError(f"can't write the checkpoint {folder}: {error}; free space, then --resume") from error

    def load_state(self, folder: Path) -> None:
        """Continue from such a folder."""
        from nat_finetune.local.take_over import take_over

        try:
            version = int(json.loads((folder / _COUNTERS).read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{folder} is no checkpoint of trl_trainer_adapter: {error!r}") from error
        take_over(self._policy, folder / _WEIGHTS, version=version)

    # ------------------------------------------------------------------------------------------------------------- inside

    @property
    def _run_folder(self) -> Path:
        if self._run is None:
            raise BackendError(f"trainer_adapters.{self._name}: a job needs a run's folder, and there is none here")
        return self._run.resolve()

    def _place(self, name: str) -> Path:
        return self._run_folder / _FOLDER / name

    def _job_folder(self, spec: JobSpec) -> Path:
        return self._place(f"{spec.step:05d}-{spec.key[:12]}")

    def _folder_of(self, ref: TrainingJobRef) -> Path:
        if not {"host", "folder", "pid", "group", "born", "prepared", "version", "tokens"} <= ref.metadata.keys():
            raise BackendError(f"job {ref.job_id} is none of trl_trainer_adapter's: its reference does not say where it runs")
        host = ref.metadata["host"]
        if host != socket.gethostname():
            raise BackendError(f"TRL's job {ref.job_id} runs on {host}, this is {socket.gethostname()}: ask there")
        return self._run_folder / str(ref.metadata["folder"])

    def _who(self, ref: TrainingJobRef) -> process.Who:
        told = ref.metadata
        return process.Who(int(told["pid"]), int(told["group"]), str(told["born"]))

    def _ref(self, spec: JobSpec, who: process.Who) -> TrainingJobRef:
        name = self._job_folder(spec).name
        told: dict[str, Any] = {name: spec.payload[name] for name in ("prepared", "version", "tokens", "host")}
        told |= {"folder": f"{_FOLDER}/{name}", "pid": who.pid, "group": who.group, "born": who.born}
        return TrainingJobRef(name, spec.key, self._name, told)

    def _reference(self, reference: PolicyRef | None) -> str | None:
        """Folder of the policy that preferences are held against, as the prepared folder sees it."""
        if self._config.algorithm.name != "dpo":
            return None
        if reference is None or reference.version == self._policy.version:
            return MODEL if self._config.lora is None else None
        name = f"reference-{reference.version:05d}"
        if not self._place(name).is_dir():
            raise BackendError(f"the weights of version {reference.version}, the reference that is asked for, are gone")
        return f"../{name}"

    def _keep_reference(self, reference: PolicyRef | None, prepared: Path) -> None:
        """Keep the policy as it is now, where later updates may be held against it."""
        if reference is None or reference.version != self._policy.version or self._config.algorithm.name != "dpo":
            return
        kept = self._place(f"reference-{reference.version:05d}")
        if kept.is_dir():
            return
        if self._config.lora is None or self._policy.version == 0:  # a fresh adapter changes nothing
            linked(prepared / MODEL, kept)
        else:
            from nat_finetune.local.export import export_merged

            export_merged(self._policy, kept)

    async def _agreement(self, prepared: Path, outcome: Outcome) -> float:
        """Largest distance, nats, between TRL and our engine at the trained weights."""
        from nat_finetune.local.agreement import BOUNDS

        rows = [(tuple(p), tuple(c)) for p, c in json.loads((prepared / TOLD).read_text(encoding="utf-8"))["canary"]]
        ours = await self._policy.engine.score(rows)
        pairs = zip(ours, outcome.canary, strict=True)
        apart = max(abs(a - b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))
        bound = self._config.agreement_bound or BOUNDS[self._policy.dtype]
        if apart > bound:
            raise AgreementError(
                f"TRL and the engine are {apart:.3g} nats apart on the same tokens at the trained weights, more than "
                f"{bound:g}: the weights that were taken over are not those that TRL trained (agreement_bound)"
            )
        return apart

    def _about(self, ref: TrainingJobRef, outcome: Outcome) -> dict[str, Any]:
        return {
            "service": "TRL",
            "versions": dict(outcome.versions),
            "host": ref.metadata["host"],
            "output_model": str(self._folder_of(ref) / OUTPUT),
            "deployment": f"llms.{self._target.llm}, in this process",
            **({"rollouts": dict(outcome.rollouts)} if outcome.rollouts is not None else {}),
        }
