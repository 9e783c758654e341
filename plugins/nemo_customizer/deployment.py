"""The trained model, served: from the job's output to the address and name under which the workflow's calls go to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nat_finetune_plugins.nemo_customizer import answers, wire
from nat_finetune_plugins.nemo_customizer.client import Customizer
from nat_finetune_plugins.nemo_customizer.names import deployment_label
from nat_finetune_plugins.nemo_customizer.settings import DeploymentSettings
from nat_finetune_plugins.nemo_customizer.statuses import deployment_status

from nat_finetune.errors import BackendError
from nat_finetune.remote.http import Service
from nat_finetune.remote.polling import follow
from nat_finetune.types import JobState, TrainingJobStatus


@dataclass(frozen=True, slots=True)
class DeploymentRules:
    """How it is made and waited for."""

    settings: DeploymentSettings
    namespace: str
    interval: float
    """Seconds between two looks."""
    timeout: float
    max_failures: int


@dataclass(frozen=True, slots=True)
class Deployed:
    """Where the model answers."""

    name: str
    url: str
    """Up to and with `/v1`."""
    model: str
    """What it is called there."""

    def described(self) -> dict[str, Any]:
        """For the report."""
        return {"name": self.name, "url": self.url, "model": self.model, "status": "ready"}


class Deployments:
    """Deploys models of the customizer."""

    def __init__(self, customizer: Customizer, rules: DeploymentRules, *, request_timeout: float, verify: bool) -> None:
        self._customizer = customizer
        self._rules = rules
        self._request_timeout = request_timeout
        self._verify = verify

    def name(self, run_id: str) -> str:
        """Of a run's deployment."""
        return self._rules.settings.deployment_name or deployment_label("nat-deployment", run_id)

    async def require_free(self, run_id: str) -> None:
        """That no other run's model stands under the name that was chosen.

        Raises:
            BackendError: one does.
        """
        name = self._rules.settings.deployment_name
        if name is not None:
            await self._customizer.has_deployment(self._rules.namespace, name, of=self._config_of(run_id))

    async def deploy(
        self, model: str, run_id: str, *, on_status: Callable[[TrainingJobStatus], None] = lambda status: None
    ) -> Deployed:
        """Have a model served and wait until it answers; one that is served already is left as it is.

        Raises:
            JobGoesOn: it is not ready in time.
            BackendError: it failed; the model is trained all the same.
        """
        settings, namespace = self._rules.settings, self._rules.namespace
        config = wire.deployment_config_body(
            namespace,
            _config_name(run_id),
            model=model,
            description=settings.description,
            nim=settings.nim(),
        )
        name = self.name(run_id)
        asked = wire.deployment_body(namespace, name, config=_config_name(run_id), description=settings.description)
        if not await self._customizer.has_deployment(namespace, name, of=self._config_of(run_id)):
            await self._customizer.make_deployment(config, asked)
        status = await follow(
            lambda: self._status(name, model),
            interval=self._rules.interval,
            timeout=self._rules.timeout,
            max_failures=self._rules.max_failures,
            on_status=on_status,
            what=f"deployment {namespace}/{name} of {model} (which is trained)",
        )
        if status.state is not JobState.COMPLETED:
            said = f"{status.backend_state}: {status.message}" if status.message else status.backend_state
            raise BackendError(
                f"{model} is trained, but deployment {namespace}/{name} ended as {said}: delete it, so that it can be made anew"
            )
        url = self._url(await self._customizer.deployment(namespace, name))
        names = await self._names(url)
        served = _served_as(model, names)
        if served is None:
            raise BackendError(f"{url} does not serve {model}; it serves {', '.join(names) or 'nothing'}")
        return Deployed(name, url, served)

    def _config_of(self, run_id: str) -> str:
        return f"{self._rules.namespace}/{_config_name(run_id)}"

    async def _status(self, name: str, model: str) -> TrainingJobStatus:
        """Ready means: it answers, and knows the model."""
        deployment = await self._customizer.deployment(self._rules.namespace, name)
        status = deployment_status(deployment)
        if status.state is not JobState.COMPLETED:
            return status
        names = await self._names(self._url(deployment))
        if _served_as(model, names) is not None:
            return status
        said = f"it serves {', '.join(names) or 'nothing'}, not yet {model}"
        return TrainingJobStatus(JobState.RUNNING, message=said, backend_state=status.backend_state)

    def _url(self, deployment: answers.Deployment) -> str:
        url = (self._rules.settings.inference_url or deployment.url).rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    async def _names(self, url: str) -> list[str]:
        key = self._rules.settings.inference_api_key
        endpoint = Service(
            "the deployed model",
            url,
            headers={} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
            timeout=self._request_timeout,
            secrets=[key],
            verify=self._verify,
        )
        try:
            return [model.id for model in answers.read(answers.ServedModels, await endpoint.get("/models"), url).data]
        finally:
            await endpoint.close()


def _config_name(run_id: str) -> str:
    return deployment_label("nat-deploy-config", run_id)


def _served_as(model: str, names: list[str]) -> str | None:
    """What an endpoint calls a model: its name, its name without version, or, where it serves one model only, that one's."""
    plain = model.partition("@")[0]
    known = next((name for name in (model, plain) if name in names), None)
    return known if known is not None else names[0] if len(names) == 1 else None
