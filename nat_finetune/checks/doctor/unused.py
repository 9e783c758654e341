"""Entries that nothing refers to, and targets that can't be reached: read off the config alone."""

from __future__ import annotations

from collections.abc import Iterator

from nat_finetune.checks.doctor.chosen import References, sections_of, target_llm_of
from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.compose import target_of
from nat_finetune.config.schema import WORKFLOW, RunConfig

_ROOT = ("workflow", "workflow")
_ALTERNATIVES = frozenset({"evaluators", "trajectory_builders", "trainer_adapters", "trainers"})
"""Sections in which an entry may well be kept for another time."""


def unused_findings(config: RunConfig, known: References) -> Iterator[Finding]:
    """Entries that the run would never make."""
    used = set(known.reached(known.roots | {_ROOT}))
    name, _ = target_llm_of(config)
    used.add(("llms", name))
    if config.finetuning.test is not None and config.finetuning.test.metrics is None and not config.finetuning.rewards:
        used |= {("evaluators", evaluator) for evaluator in config.eval.evaluators}
    for section, entries in sections_of(config).items():
        key = "eval.evaluators" if section == "evaluators" else section
        for entry in entries:
            if (section, entry) not in used:
                say = note if section in _ALTERNATIVES else warning
                message = "nothing that runs refers to it"
                yield say("unused.entry", message, "name it where it should be used, or take it out", f"{key}.{entry}")


def target_findings(config: RunConfig, known: References) -> Iterator[Finding]:
    """Whether calls of the target model can happen inside the target functions at all."""
    target = target_of(config)
    if config.workflow is None:
        return
    running = known.reached(frozenset({_ROOT}))
    starts = frozenset(_ROOT if name == WORKFLOW else ("functions", name) for name in target.functions)
    running_targets = starts & running
    if ("llms", target.llm) in known.reached(running_targets):
        return
    named = ", ".join(target.functions)
    if not running_targets:
        yield error(
            "target.unreachable",
            f"the workflow refers to none of the target functions ({named}), not even through other functions",
            f"name functions that it uses: {', '.join(sorted(n for s, n in running if s == 'functions')) or 'none'}",
            "finetuning.target_functions",
        )
        return
    models = sorted(name for section, name in known.reached(running_targets) if section == "llms")
    yield error(
        "target.unreachable",
        f"{named} can't call llms.{target.llm}, the model that is trained; it refers to {', '.join(models) or 'no llm'}",
        f"set finetuning.target_model to {' or '.join(models)}, or name other target functions"
        if models
        else "name target functions that call it",
        "finetuning.target_model",
    )


def judge_findings(config: RunConfig, known: References) -> Iterator[Finding]:
    """A reward whose evaluator asks the model that is trained."""
    target = target_of(config)
    for name in target.needed_scores:
        if ("llms", target.llm) in known.direct.get(("evaluators", name), frozenset()):
            yield warning(
                "reward.own-judge",
                f"eval.evaluators.{name} asks llms.{target.llm}, which is trained: it would learn to please itself",
                "give the evaluator another model, which stays as it is",
                f"eval.evaluators.{name}",
            )
