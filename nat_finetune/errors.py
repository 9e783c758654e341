"""Every error that nat-finetune raises, the exit code it ends a command with, and the one place that catches.

    NatFinetuneError                  1   something that is nobody's fault but ours
    ├── ConfigError                   2   the YAML file, an override, a plugin that can't be used
    ├── DataError                     3   no data: a dataset that is missing, empty, or can't be read
    ├── NoTrainableSignal             4   rollouts ran, but nothing in them can be learned from
    │   └── UntrustedReward           4   the reward fails on known answers, or disagrees with reviewers
    ├── RolloutFailureLimit           5   too many rollouts failed
    ├── BackendError                  6   the model, the trainer or a service failed
    │   ├── AgreementError            6   sampler and trainer disagree about the same weights
    │   ├── ServiceError              6   a service did not answer, or not as asked
    │   ├── OutOfReach                6   a job can't be watched any more: too many failures in a row
    │   └── JobGoesOn                 7   a job has not ended in time; the message says how to re-attach
    ├── Detached                      7   a job goes on elsewhere; the message says how to re-attach
    ├── OutputError                   8   the run folder can't be written (disk full, no permission)
    ├── GateFailed                    9   a model may not be promoted: it did not show the gain that was asked for
    ├── DoctorFound                  10   `doctor` found errors that a run would not survive
    ├── Interrupted                 130   Ctrl-C; the message says how to resume
    └── StageError                        a failure inside one rollout: data, not a crash
        ├── PolicyFailure                 the policy caused it: an outcome with a reward
        └── InfrastructureFailure         anything else: the reward is unknown

A new error goes into this tree with a docstring that says when it is raised. Code of users (workflows, evaluators, tools)
raises whatever it likes: `boundary()` attributes it to a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from nat_finetune.types import Cause


class Stage(StrEnum):
    """The part of a rollout or run in which something failed."""

    WORKFLOW = "workflow"
    MODEL = "model"
    TOOL = "tool"
    TIMEOUT = "timeout"
    EVALUATOR = "evaluator"


class NatFinetuneError(Exception):
    """Base of all errors; `exit_code` is what the command line ends with."""

    exit_code: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a config: where it stands, what it is and what to do."""

    message: str
    key: str = ""
    """Dotted path, such as `trainers.fresh.num_runs`."""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        head = ": ".join(part for part in (place, self.key, self.message) if part)
        return f"{head} ({self.hint})" if self.hint else head


class ConfigError(NatFinetuneError, ValueError):
    """Raised when a config can't be right; carries all problems that were found, not just the first."""

    exit_code = 2

    def __init__(self, problems: Problem | list[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = [problems] if isinstance(problems, Problem) else problems
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(NatFinetuneError, ValueError):
    """Raised when a dataset is missing, empty, malformed, or has ids that can't be told apart."""

    exit_code = 3


class NoTrainableSignal(NatFinetuneError):
    """Raised when an update would train on nothing: all groups flat, no pair formed, zero trainable tokens."""

    exit_code = 4


class UntrustedReward(NoTrainableSignal):
    """Raised when a reward fails on known answers, or disagrees with reviewers: training on it would teach something else."""


class RolloutFailureLimit(NatFinetuneError):
    """Raised when more rollouts of a step failed than `max_failure_rate` allows."""

    exit_code = 5


class BackendError(NatFinetuneError, RuntimeError):
    """Raised when a model can't be loaded, an update fails or a service refuses."""

    exit_code = 6
    transient: bool = False
    """Whether the same question may have an answer the next time."""


class AgreementError(BackendError):
    """Raised when sampler and trainer give different logprobs for the same tokens at the same weights."""


class ServiceError(BackendError):
    """Raised when a request to a service failed."""

    def __init__(self, message: str, *, status: int | None = None, body: str = "", transient: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """None: there was no whole answer, and the request may or may not have been processed."""
        self.body = body
        """What was answered, without secrets."""
        self.transient = transient


class OutOfReach(BackendError):
    """Raised when a job could not be asked about several times in a row; it may still run."""


class JobGoesOn(BackendError):
    """Raised when a job has not ended by the timeout; it still runs."""

    exit_code = 7


class Detached(NatFinetuneError):
    """Raised when a job was left running on purpose."""

    exit_code = 7


class OutputError(NatFinetuneError, OSError):
    """Raised when the run folder can't be written."""

    exit_code = 8


class GateFailed(NatFinetuneError):
    """Raised when a model did not show what `nat-finetune gate` asks for."""

    exit_code = 9


class DoctorFound(NatFinetuneError):
    """Raised when `nat-finetune doctor` found errors."""

    exit_code = 10


class Interrupted(NatFinetuneError):
    """Raised on Ctrl-C, after what was finished has been written."""

    exit_code = 130


class StageError(NatFinetuneError):
    """A failure inside a rollout, attributed to a stage."""

    cause: Cause = Cause.INFRASTRUCTURE

    def __init__(self, message: str, *, stage: Stage = Stage.WORKFLOW, error_type: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.error_type = error_type or type(self).__name__


class PolicyFailure(StageError):
    """Raised by a workflow when the policy's own output ended the rollout: unparsable, illegal, too long, too many turns.

    It is an outcome and earns the workflow's or `finetuning.failure_reward`'s reward, or crashing would pay.
    """

    cause = Cause.POLICY


class InfrastructureFailure(StageError):
    """A failure that says nothing about the policy: its rollout's rewards are None."""


@contextmanager
def boundary(stage: Stage) -> Iterator[None]:
    """Turn whatever users' code raises inside into a StageError of `stage`; the only place that catches everything.

    Errors of this tree pass through unchanged: they are already attributed, or must end the run. SystemExit is caught too: a
    library that calls sys.exit() must not end the run, and with no word why.
    """
    try:
        yield
    except NatFinetuneError:
        raise
    except (Exception, SystemExit) as error:
        raise InfrastructureFailure(str(error) or repr(error), stage=stage, error_type=type(error).__name__) from error
