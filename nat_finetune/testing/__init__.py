"""For tests of workflows and plugins: a scripted chat model, rollouts without a model, one component by itself, conformance.

    from nat_finetune.testing import ScriptedChatModel, run_workflow

    rollout = run_workflow(MyWorkflowConfig(llm="policy"), "4 + 4?", llms={"policy": ScriptedChatModel(["8"])})
    assert rollout.output == 8

Nothing here needs a network, and nothing but `conformance.check_adapter` loads torch.
"""

from nat_finetune.testing import conformance
from nat_finetune.testing.chat import ScriptedCall, ScriptedChatModel
from nat_finetune.testing.parts import TARGET, FakeBuilder, made
from nat_finetune.testing.rollouts import FakeRecorder
from nat_finetune.testing.training_run import FakeTrainingRun
from nat_finetune.testing.workflows import run_workflow, score

__all__ = [
    "TARGET",
    "FakeBuilder",
    "FakeRecorder",
    "FakeTrainingRun",
    "ScriptedCall",
    "ScriptedChatModel",
    "conformance",
    "made",
    "run_workflow",
    "score",
]
