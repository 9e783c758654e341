"""`nemo_customizer_trainer_adapter`: data to the data store, a job to the customizer, its model to a deployment."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from nat_finetune_plugins.nemo_customizer import answers, wire
from nat_finetune_plugins.nemo_customizer.client import EXISTS, Customizer
from nat_finetune_plugins.nemo_customizer.config import NeMoCustomizerTrainerAdapterConfig
from nat_finetune_plugins.nemo_customizer.deployment import Deployed, DeploymentRules, Deployments
from nat_finetune_plugins.nemo_customizer.files import DataFile, DataStore
from nat_finetune_plugins.nemo_customizer.outcome import update_result
from nat_finetune_plugins.nemo_customizer.preparation import Preparation
from nat_finetune_plugins.nemo_customizer.statuses import job_status, log_lines

from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import BackendError, JobGoesOn, OutOfReach, ServiceError
from nat_finetune.interfaces import Builder
from nat_finetune.remote.http import Service
from nat_finetune.remote.interfaces import RemoteAdapter, ServedChatModel
from nat_finetune.remote.polling import ENDED, described, follow
from nat_finetune.remote.target import Served, served_target
from nat_finetune.types import (
    Collection,
    JobSpec,
    JobState,
    PolicyRef,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

CANCEL_SECONDS = 120.0
"""How long a job is given to stop."""
_REFUSED = frozenset({400, 409, 422})
"""What cancelling a job is answered with that has ended by itself."""


class NeMoCustomizerAdapter:
    """Implements `remote.interfaces.RemoteAdapter`."""

    def __init__(
        self,
        config: NeMoCustomizerTrainerAdapterConfig,
        builder: Builder,
        customizer: Customizer,
        store: Service,
        uploads: Service,
        target: ServedChatModel | None,
        preparation: Preparation,
    ) -> None:
        self._config = config
        self._llm = builder.target.llm
        self._entry = builder.entry_name
        self._folder = builder.folder
        self._preparation = preparation
        self._customizer = customizer
        self._store = store
        self._target = target
        self._version = 0
        self._served: Served | None = None
        timeout = config.request_timeout_seconds
        self._data = DataStore(store, uploads, timeout=timeout, find=preparation.find)
        rules = DeploymentRules(
            config.deployment_config,
            config.namespace,
            config.poll_interval_seconds,
            config.deployment_timeout_seconds,
            config.max_consecutive_status_failures,
        )
        self._deployments = Deployments(customizer, rules, request_timeout=timeout, verify=config.verify_ssl)

    async def health(self) -> None:
        """That both hosts answer, that the customizer has the config and trains in this way, and that a chosen name is free.

        Raises:
            ConfigError: there is no such config; names those that come near.
            BackendError: a host does not answer.
        """
        given = self._config.hyperparameters
        await self._customizer.require_config(
            self._config.customization_config,
            training_type=given.training_type,
            finetuning_type=given.finetuning_type,
            key=f"trainer_adapters.{self._entry}",
        )
        path = f"{wire.STORE_NAMESPACES}/{self._config.namespace}"
        await self._store.request("GET", path, retry=True, tolerate={404, 405})
        if self._config.deploy_on_completion and self._folder is not None:
            await self._deployments.require_free(self._folder.name)

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Write the files; nothing is sent.

        Raises:
            ConfigError, DataError: the items are not what the service takes.
            OutputError: the files can't be written.
        """
        return await asyncio.to_thread(self._preparation.spec, collection, version=self._version + 1)

    async def find(self, spec: JobSpec) -> TrainingJobRef | None:
        """The job with the spec's key among the namespace's jobs."""
        job = await self._customizer.find_job(self._config.namespace, spec.key)
        if job is None:
            return None
        return self._ref(spec, job, revision=await self._customizer.revision_of(spec.payload["dataset"]))

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Upload, register, submit; whatever of it was done before is left as it is.

        Raises:
            BackendError: refused, or out of reach; trying again is safe.
        """
        there = await self.find(spec)
        if there is not None:
            return there
        repo: str = spec.payload["dataset"]
        await self._make_room(repo)
        files = [DataFile(**file) for file in spec.payload["files"]]
        uploaded = await self._data.upload(repo, files, summary=f"Data of run {spec.run_id}, step {spec.step}")
        fields = {wire.KEY_FIELD: spec.key, wire.RUN_FIELD: spec.run_id, wire.REVISION_FIELD: uploaded.revision}
        described_as = f"nat-finetune training data of run {spec.run_id}"
        await self._customizer.register_dataset(wire.dataset_body(repo, described_as, fields))
        job = await self._customizer.submit(self._preparation.job(spec), namespace=self._config.namespace, key=spec.key)
        return self._ref(spec, job, revision=uploaded.revision)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where the job stands, with the service's word, losses and last note."""
        return job_status(await self._customizer.status(ref.job_id))

    async def wait(
        self, ref: TrainingJobRef, *, on_status: Callable[[TrainingJobStatus], None] | None = None
    ) -> TrainingJobStatus:
        """Until the job has ended and, where that is asked for, its model is deployed.

        Raises:
            JobGoesOn: `job_timeout_seconds` or `deployment_timeout_seconds` is over.
            OutOfReach: the service can't be asked any more.
        """
        told = on_status or (lambda status: None)
        status = await follow(
            lambda: self.status(ref),
            interval=self._config.poll_interval_seconds,
            timeout=self._config.job_timeout_seconds,
            max_failures=self._config.max_consecutive_status_failures,
            on_status=told,
            what=f"job {ref.job_id}",
        )
        if status.state is JobState.COMPLETED and self._config.deploy_on_completion:
            await self._deploy(ref, lambda deployment: told(_deploying(status, deployment)))
        return status

    async def _deploy(self, ref: TrainingJobRef, told: Callable[[TrainingJobStatus], None]) -> None:
        """Have the model served; why it can't be, `result` says, for the job itself has done what it should."""
        try:
            model = _output_model(await self._customizer.job(ref.job_id))
            await self._deployments.deploy(model, ref.metadata["run_id"], on_status=told)
        except (JobGoesOn, OutOfReach):
            raise
        except BackendError:
            return

    async def cancel(self, ref: TrainingJobRef) -> None:
        """Stop the job, and wait until it has stopped; one that has ended is left as it is."""
        if (await self.status(ref)).state in ENDED:
            return
        try:
            await self._customizer.cancel(ref.job_id)
        except ServiceError as error:
            if error.status not in _REFUSED or (await self.status(ref)).state not in ENDED:
                raise
        await follow(
            lambda: self.status(ref),
            interval=min(2.0, self._config.poll_interval_seconds),
            timeout=CANCEL_SECONDS,
            max_failures=self._config.max_consecutive_status_failures,
            what=f"job {ref.job_id}, which was told to stop,",
        )

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """What the service noted, then what the job's containers wrote."""
        status = await self._customizer.status(ref.job_id)
        return [*log_lines(status), *await self._customizer.container_logs(ref.job_id)]

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """The trained model; from then on the workflow's calls go to its deployment, where there is one.

        Raises:
            BackendError: the job failed, with the service's reason and its last lines; it was cancelled; it has not ended.
        """
        status = await self._customizer.status(ref.job_id)
        state = job_status(status)
        if state.state is not JobState.COMPLETED:
            lines = "".join(f"\n  {line}" for line in log_lines(status)[-5:])
            raise BackendError(f"job {ref.job_id} of {self._customizer.service.base_url}: {described(state)}{lines}")
        job = await self._customizer.job(ref.job_id)
        model = _output_model(job)
        deployed = None
        if self._config.deploy_on_completion:
            deployed = await self._deployments.deploy(model, ref.metadata["run_id"])
        policy = PolicyRef(self._llm, ref.metadata["version"], location=deployed.model if deployed else model)
        self._use(policy, deployed)
        return update_result(policy, ref, job, status, deployed)

    def serving(self) -> bool:
        """Whether the model of the last result is deployed, and the workflow's calls go there."""
        return self._served is not None and self._served.base_url is not None

    def save_state(self, folder: Path) -> None:
        """Where the policy is served."""
        policy = PolicyRef(self._llm, self._version)
        served = self._served or Served(policy, "")
        served.save(folder)

    def load_state(self, folder: Path) -> None:
        """Send the workflow's calls there again."""
        served = Served.load(folder)
        self._version = served.policy.version
        self._served = served if served.model else None
        if self._served is not None and self._served.base_url is not None:
            self._serve(self._served)

    def _use(self, policy: PolicyRef, deployed: Deployed | None) -> None:
        self._version = policy.version
        self._served = Served(policy, policy.location, None if deployed is None else deployed.url)
        if deployed is not None:
            self._serve(self._served)

    def _serve(self, served: Served) -> None:
        key = self._config.deployment_config.inference_api_key
        if self._target is not None:
            served.use(self._target, None if key is None else key.get_secret_value())

    async def _make_room(self, repo: str) -> None:
        """Namespaces, where that is asked for, and the repository."""
        if self._config.create_namespace_if_missing:
            await self._customizer.make_namespace(self._config.namespace)
            there = {"namespace": self._config.namespace}
            await self._store.post(wire.STORE_NAMESPACES, retry=True, data=there, tolerate={EXISTS, 422})
        await self._store.post(wire.REPOSITORIES, retry=True, json=wire.repository_body(repo), tolerate={EXISTS})

    def _ref(self, spec: JobSpec, job: answers.Job, *, revision: str | None) -> TrainingJobRef:
        about = {name: spec.payload[name] for name in ("version", "hosts", "dataset", "files", "notes")}
        metadata: dict[str, Any] = {"run_id": spec.run_id, "revision": revision, **about}
        return TrainingJobRef(job.id, spec.key, self._entry, metadata)


def _deploying(job: TrainingJobStatus, deployment: TrainingJobStatus) -> TrainingJobStatus:
    """A job that is done, and what is done with its model."""
    said = f"{deployment.backend_state}: {deployment.message}" if deployment.message else deployment.backend_state
    return replace(job, message=f"deployment {said}")


def _output_model(job: answers.Job) -> str:
    if not job.output_model:
        raise BackendError(f"job {job.id} has completed without an output model: set output_model in the adapter's config")
    return job.output_model


@asynccontextmanager
async def open_adapter(config: NeMoCustomizerTrainerAdapterConfig, builder: Builder) -> AsyncIterator[RemoteAdapter]:
    """The adapter, with its connections."""
    target = await served_target(builder) if config.deploy_on_completion else None
    async with AsyncExitStack() as stack:
        entity = _service("NeMo Customizer", config.entity_host, config.api_key, config, builder.seed, accept=wire.JSON)
        stack.push_async_callback(entity.close)
        store = _service("NeMo Data Store", config.datastore_host, config.hf_token, config, builder.seed)
        stack.push_async_callback(store.close)
        uploads = Service(
            "NeMo Data Store (upload)",
            config.datastore_host,
            timeout=config.request_timeout_seconds,
            secrets=[config.hf_token],
            verify=config.verify_ssl,
            seed=builder.seed,
        )
        stack.push_async_callback(uploads.close)
        jitter = Random(derive_seed(builder.seed, "retry", builder.entry_name))
        folder = builder.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nemo-customizer-")))
        preparation = Preparation(config, builder.entry_name, builder.seed, folder)
        yield NeMoCustomizerAdapter(config, builder, Customizer(entity, jitter=jitter), store, uploads, target, preparation)


def _service(
    name: str, host: str, key: Any, config: NeMoCustomizerTrainerAdapterConfig, seed: int, *, accept: str = "*/*"
) -> Service:
    """A host; without a key no header is sent, for an empty one is refused by every client and server."""
    given = {"Accept": accept} | {header: value.get_secret_value() for header, value in config.headers.items()}
    return Service(
        name,
        host,
        headers={**given, **({} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"})},
        timeout=config.request_timeout_seconds,
        secrets=[key, *config.headers.values()],
        verify=config.verify_ssl,
        seed=seed,
    )
