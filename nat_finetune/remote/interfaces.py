"""What a backend outside this process offers beside `nat_finetune.interfaces`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from nat_finetune.interfaces import ChatModel, TrainerAdapter
from nat_finetune.types import JobSpec, PolicyRef, TrainingJobRef, TrainingJobStatus


@runtime_checkable
class RemoteAdapter(TrainerAdapter, Protocol):
    """A trainer adapter whose jobs outlive the process; its config says `remote = True`.

    Any process may ask about a job by its `TrainingJobRef` alone. `submit` looks for the job first (`find`), or gives the
    backend `spec.key` in a form that it refuses twice: what was sent once is never sent again. The key may be another than
    `prepare` made: that of a further attempt after a job that failed. A transient failure of `submit` is raised as it is: the
    caller asks `find` before it submits again. `result` is where the trained policy becomes the one that is sampled from
    (deployed, `served_at`, loaded back); another process may call it again after a crash, and it then does what is missing.
    """

    async def wait(
        self, ref: TrainingJobRef, *, on_status: Callable[[TrainingJobStatus], None] | None = None
    ) -> TrainingJobStatus:
        """Follow it to its end (`remote.polling.follow`); `on_status` gets each new status.

        Raises:
            JobGoesOn: the adapter's timeout is over.
            OutOfReach: too many questions in a row had no answer.
        """

    async def find(self, spec: JobSpec) -> TrainingJobRef | None:
        """The job that any process has submitted under `spec.key`; None: there is none, submitting is safe.

        Raises:
            BackendError: the backend can't be asked.
        """

    def serving(self) -> bool:
        """Whether the workflow's calls of the target model reach the policy of the last result.

        Where not, the trained model is not measured, and the report says so.
        """


@runtime_checkable
class StreamedAdapter(Protocol):
    """A remote adapter whose jobs are answers that are read as they come: without a reader they end, unless they are done."""

    async def lost(self, ref: TrainingJobRef) -> bool:
        """Whether the job ended with the process that read it and left nothing behind: then it is sent anew.

        Raises:
            BackendError: the backend can't be asked.
        """


@runtime_checkable
class ServedChatModel(ChatModel, Protocol):
    """A chat model behind an endpoint that can be pointed at another model: the one that was trained."""

    def served_at(self, *, base_url: str | None, model: str, api_key: str | None, policy: PolicyRef) -> None:
        """From the next call on, ask for `model` there, and record the calls as that policy's.

        Args:
            base_url: up to and with `/v1`; None: where it is.
            model: the name under which the policy is served.
            api_key: None: as before, but none where the origin is another.
            policy: what the calls are recorded as.
        """
