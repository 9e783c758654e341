"""Entity store, customizer and deployment service, one method for each thing that the adapter asks of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from random import Random

from nat_finetune_plugins.nemo_customizer import answers, wire

from nat_finetune.errors import BackendError, ConfigError, Problem, ServiceError
from nat_finetune.remote.http import Service

EXISTS = 409
SUBMITS = 6
"""Attempts to submit a job: each looks first whether an earlier one has arrived."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds between them."""


class Customizer:
    """The services behind `entity_host`."""

    def __init__(self, service: Service, *, jitter: Random, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.service = service
        self._jitter = jitter
        self._sleep = sleep

    async def require_config(self, name: str, *, training_type: str, finetuning_type: str, key: str) -> answers.Config:
        """The customization config of this name.

        Raises:
            ConfigError: the server has none, or it does not train in this way; names what it has.
        """
        configs = await self._pages(wire.CONFIGS, answers.Page[answers.Config])
        found = next((config for config in configs if name in (config.full_name, config.name)), None)
        if found is None:
            names = sorted(config.full_name for config in configs)
            near = get_close_matches(name, names, n=3, cutoff=0.3)
            shown = ", ".join(near or names[:10]) or "none at all"
            said = f"{self.service.base_url} has no customization config {name!r}"
            raise ConfigError(Problem(said, f"{key}.customization_config", hint=f"{'near' if near else 'it has'}: {shown}"))
        offered = {(option.training_type, option.finetuning_type) for option in found.training_options}
        if offered and (training_type, finetuning_type) not in offered:
            shown = ", ".join(sorted(f"{one} with {other}" for one, other in offered))
            said = f"{name} does not offer training_type {training_type} with finetuning_type {finetuning_type}"
            raise ConfigError(Problem(said, f"{key}.hyperparameters", hint=f"it offers: {shown}"))
        return found

    async def make_namespace(self, name: str) -> None:
        """A namespace, unless it is there."""
        await self.service.post(wire.NAMESPACES, retry=True, json=wire.namespace_body(name), tolerate={EXISTS})

    async def register_dataset(self, body: wire.Body) -> None:
        """A dataset, unless it is there.

        Raises:
            BackendError: another one has its name.
        """
        asked = await self.service.request("POST", wire.DATASETS, retry=True, json=body, tolerate={EXISTS})
        if asked.status == EXISTS:
            name = f"{body['namespace']}/{body['name']}"
            there = await self.service.get(wire.dataset(body["namespace"], body["name"]))
            found = answers.read(answers.RegisteredDataset, there, f"dataset {name}").files_url
            if found.rstrip("/") != body["files_url"]:
                raise BackendError(f"dataset {name} exists and is of {found}, expected {body['files_url']}")

    async def revision_of(self, repo: str) -> str | None:
        """The commit that a registered dataset was registered with; None where that is not known."""
        asked = await self.service.request("GET", wire.dataset(*repo.split("/")), retry=True, tolerate={404})
        if asked.status == 404:
            return None
        fields = answers.read(answers.RegisteredDataset, asked.data, f"dataset {repo}").custom_fields or {}
        return None if fields.get(wire.REVISION_FIELD) is None else str(fields[wire.REVISION_FIELD])

    async def find_job(self, namespace: str, key: str) -> answers.Job | None:
        """The job that was submitted under a key, whichever process did."""
        for job in await self._pages(wire.JOBS, answers.Page[answers.Job], namespace=namespace):
            if (job.custom_fields or {}).get(wire.KEY_FIELD) == key:
                return job
        return None

    async def submit(self, body: wire.Body, *, namespace: str, key: str) -> answers.Job:
        """The job of a key, submitted unless it is there.

        Raises:
            BackendError: refused; or it is not known whether it arrived, and the next attempt will look.
        """
        for attempt in range(SUBMITS):
            found = await self.find_job(namespace, key)
            if found is not None:
                return found
            try:
                made = await self.service.post(wire.JOBS, retry=False, json=body)
                return answers.read(answers.Job, made, "the new job")
            except ServiceError as error:
                if error.status != EXISTS and (not error.transient or attempt + 1 == SUBMITS):
                    raise
                if error.status == EXISTS and attempt + 1 == SUBMITS:
                    raise BackendError(f"a job {namespace}/{body['name']} exists that is not this run's: {error}") from error
            longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)
            await self._sleep(longest * (1 - 0.25 * self._jitter.random()))
        raise AssertionError("the last attempt returns or raises")

    async def job(self, job_id: str) -> answers.Job:
        """A job."""
        return answers.read(answers.Job, await self.service.get(wire.job(job_id)), f"job {job_id}")

    async def status(self, job_id: str) -> answers.Status:
        """Where it stands."""
        return answers.read(answers.Status, await self.service.get(wire.job(job_id, "status")), f"the status of {job_id}")

    async def cancel(self, job_id: str) -> None:
        """Have it stopped; the status says when it is."""
        await self.service.post(wire.job(job_id, "cancel"), retry=True, headers={"Content-Type": wire.JSON})

    async def container_logs(self, job_id: str) -> list[str]:
        """Its own lines; none where the service keeps none."""
        asked = await self.service.request("GET", wire.job(job_id, "container-logs"), retry=True, tolerate={404})
        return [] if asked.status == 404 else answers.read(answers.ContainerLogs, asked.data, f"the logs of {job_id}").lines

    async def make_deployment(self, config: wire.Body, deployment: wire.Body) -> None:
        """Have a model served, unless it is already.

        Raises:
            BackendError: the names are taken by the deployment of another model.
        """
        namespace, name = config["namespace"], config["name"]
        asked = await self.service.request("POST", wire.DEPLOYMENT_CONFIGS, retry=True, json=config, tolerate={EXISTS})
        if asked.status == EXISTS:
            there = await self.service.get(wire.deployment_config(namespace, name))
            found = answers.read(answers.DeploymentConfig, there, f"deployment config {name}").model
            if found != config["model"]:
                raise BackendError(f"deployment config {namespace}/{name} exists and is of {found}, expected {config['model']}")
        asked = await self.service.request("POST", wire.DEPLOYMENTS, retry=True, json=deployment, tolerate={EXISTS})
        if asked.status == EXISTS:
            await self.has_deployment(namespace, deployment["name"], of=deployment["config"])

    async def has_deployment(self, namespace: str, name: str, *, of: str) -> bool:
        """Whether there is such a deployment.

        Raises:
            BackendError: there is one, of another config than `of`.
        """
        asked = await self.service.request("GET", wire.deployment(namespace, name), retry=True, tolerate={404})
        if asked.status == 404:
            return False
        found = answers.read(answers.Deployment, asked.data, f"deployment {namespace}/{name}").config_name
        if found != of:
            raise BackendError(
                f"deployment {namespace}/{name} exists and is of {found}: give deployment_config.deployment_name another "
                "value, or delete it"
            )
        return True

    async def deployment(self, namespace: str, name: str) -> answers.Deployment:
        """A deployment, by its own address."""
        body = await self.service.get(wire.deployment(namespace, name))
        return answers.read(answers.Deployment, body, f"deployment {namespace}/{name}")

    async def _pages(self, path: str, page: type[answers.Page[answers.EntryT]], **filters: str) -> list[answers.EntryT]:
        """All entries of a list, newest first."""
        found: list[answers.EntryT] = []
        number = 1
        while True:
            body = await self.service.get(path, params=wire.page(number, **filters))
            got = answers.read(page, body, f"page {number} of {path}")
            found += got.data
            total = got.pagination.total_pages if got.pagination is not None else None
            if not got.data or (number >= total if total is not None else len(got.data) < wire.PAGE_SIZE):
                return found
            number += 1
