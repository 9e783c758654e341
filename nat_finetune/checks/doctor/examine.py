"""The examination: each area in its turn, what can't be looked at named with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nat_finetune.checks.doctor.backend import Backend, backend_of
from nat_finetune.checks.doctor.chosen import References, builder_of, references, target_llm_of
from nat_finetune.checks.doctor.data import data_findings
from nat_finetune.checks.doctor.endpoints import endpoint_findings
from nat_finetune.checks.doctor.finding import Finding, Severity, error, note, warning
from nat_finetune.checks.doctor.memory import device_of, guessed_tokens, memory_findings
from nat_finetune.checks.doctor.settings import Sizes, settings_findings
from nat_finetune.checks.doctor.try_out import Tried, read_records, try_out
from nat_finetune.checks.doctor.unused import judge_findings, target_findings, unused_findings
from nat_finetune.checks.doctor.weights import ModelSize, model_size
from nat_finetune.compose import compose, record_dataset_of
from nat_finetune.config.load import LoadedConfig, load_config
from nat_finetune.config.nodes import place
from nat_finetune.config.problems import find
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import ConfigError, NatFinetuneError, Problem
from nat_finetune.llms.local import LocalLLMConfig
from nat_finetune.preflight.holdout import DataSets, load_data
from nat_finetune.registry import Registry

EXAMPLES = 4
"""Whose rollouts are looked at."""
_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was found."""

    findings: tuple[Finding, ...]
    """Errors first."""
    looked_at: tuple[str, ...]
    left_out: tuple[str, ...]
    """Areas that were not looked at, each with the reason."""

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity is severity for finding in self.findings)


@dataclass(slots=True)
class _Patient:
    """What is known so far."""

    config: RunConfig
    registry: Registry
    known: References
    findings: list[Finding] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    size: ModelSize | None = None
    data: DataSets | None = None

    def has(self, *ids: str) -> bool:
        """Whether an error of one of these was found."""
        return any(finding.id in ids and finding.severity is Severity.ERROR for finding in self.findings)


async def examine(
    path: Path, overrides: Sequence[str], registry: Registry, *, deep: bool = True, examples: int = EXAMPLES
) -> Examination:
    """Look at a config in every way that does not train.

    Args:
        path: The config.
        overrides: As of a run.
        registry: The components.
        deep: Also load the model, ask endpoints and run the workflow; without, nothing is loaded or paid for.
        examples: Whose rollouts are looked at, each as often as the builder asks for.
    """
    try:
        loaded, found = _loaded(path, overrides, registry)
    except ConfigError as failure:
        return Examination(tuple(_of_problem(problem) for problem in failure.problems), ("config",), (_UNREADABLE,))
    patient = _Patient(loaded.config, registry, references(loaded, registry), found, ["config"])
    for look in (unused_findings, target_findings, judge_findings):
        patient.findings += look(patient.config, patient.known)
    _look_at_model(patient)
    await _look_at_data(patient)
    counted = Sizes(patient.size.parameters if patient.size else None, len(patient.data.train) if patient.data else None)
    patient.findings += settings_findings(patient.config, counted)
    patient.looked_at.append("settings")
    _look_at_memory(patient)
    backend = backend_of(patient.config)
    if backend is not None:
        patient.findings += backend.missing()
    if deep:
        await _look_at_endpoints(patient)
        await _look_at_backend(patient, backend)
        await _look_at_rollouts(patient, examples)
    else:
        asked = "endpoints" if backend is None else f"what endpoints and the {backend.area} answer"
        patient.left_out.append(f"{asked}, chat template, reward and rollouts: --quick")
    placed = [_placed(finding, loaded) for finding in dict.fromkeys(patient.findings)]
    ordered = sorted(placed, key=lambda finding: _ORDER[finding.severity])
    return Examination(tuple(ordered), tuple(patient.looked_at), tuple(patient.left_out))


_UNREADABLE = "everything else: the config must be right first"


def _loaded(path: Path, overrides: Sequence[str], registry: Registry) -> tuple[LoadedConfig, list[Finding]]:
    """The config as a run would have it, with what is to say of the file itself."""
    loaded = load_config(path, overrides, registry=registry)
    found = [note("config.migrated", text, "`nat-finetune migrate` rewrites the file") for text in loaded.notes]
    if not loaded.config.finetuning.enabled:
        message = "finetuning.enabled is false: `nat-finetune run` refuses it; looked at as if it were true"
        found.append(warning("config.not-enabled", message, "set it to true", "finetuning.enabled"))
        loaded = load_config(path, [*overrides, "finetuning.enabled=true"], registry=registry)
    return loaded, found


def _of_problem(problem: Problem) -> Finding:
    fix = problem.hint or "see the message"
    return Finding("config", Severity.ERROR, problem.message, fix, problem.key or None, problem.file, problem.line)


def _placed(finding: Finding, loaded: LoadedConfig) -> Finding:
    """With file and line of its key, or of the nearest block above it that is in the file."""
    if finding.key is None or finding.file is not None:
        return finding
    node = find(loaded.tree, tuple(finding.key.split(".")))
    at = place(Problem("", finding.key), node.key_mark or node.mark)
    return replace(finding, file=at.file, line=at.line)


def _look_at_model(patient: _Patient) -> None:
    name, llm = target_llm_of(patient.config)
    if not isinstance(llm, LocalLLMConfig):
        patient.left_out.append(f"model: the weights of llms.{name} are not in this process")
        return
    patient.looked_at.append("model")
    try:
        patient.size = model_size(llm.model, llm.revision)
    except NatFinetuneError as failure:
        fix = "give a folder with safetensors, a .gguf file, a hub id or builtin:NAME"
        patient.findings.append(error("model.unreadable", str(failure), fix, f"llms.{name}.model"))
        return
    if patient.size is None:
        message = f"{llm.model!r} is not on this machine: its size is not known"
        fix = "fetch it once (huggingface-cli download), and ask again"
        patient.findings.append(note("model.unknown-size", message, fix, f"llms.{name}.model"))


async def _look_at_data(patient: _Patient) -> None:
    patient.looked_at.append("data")
    config = patient.config
    lenient = config.model_copy(update={"finetuning": config.finetuning.model_copy(update={"allow_leakage": True})})
    try:
        async with compose(lenient, patient.registry) as parts:
            patient.data = await load_data(lenient, parts, None)
    except NatFinetuneError as failure:
        message = str(failure)
        patient.findings.append(error("data.unreadable", message, "see the message", "eval.general.dataset"))
        return
    patient.findings += data_findings(config, patient.data)


def _look_at_memory(patient: _Patient) -> None:
    name, llm = target_llm_of(patient.config)
    if patient.size is None or patient.data is None or not isinstance(llm, LocalLLMConfig):
        return
    try:
        device = device_of(llm)
    except ConfigError as failure:
        message = failure.problems[0].message
        patient.findings.append(error("model.unreadable", message, "use `device: auto`", f"llms.{name}.device"))
        return
    patient.looked_at.append("memory")
    every = [*patient.data.train, *patient.data.validation, *patient.data.test]
    tokens = guessed_tokens(every, llm, patient.size)
    patient.findings += memory_findings(patient.config, patient.size, device, tokens)


async def _look_at_endpoints(patient: _Patient) -> None:
    patient.looked_at.append("endpoints")
    used = {
        entry for section, entry in patient.known.reached(patient.known.roots | {("workflow", "workflow")}) if section == "llms"
    }
    used.add(target_llm_of(patient.config)[0])
    patient.findings += await endpoint_findings(patient.config, patient.registry, used)


async def _look_at_backend(patient: _Patient, backend: Backend | None) -> None:
    if backend is None:
        return
    if patient.has("backend.missing") or (backend.local_model and patient.has("model.unreadable", "memory.too-much")):
        patient.left_out.append(f"what the {backend.area} answers: it needs what has an error above")
        return
    patient.looked_at.append(backend.area)
    patient.findings += await backend.failing(patient.registry)


async def _look_at_rollouts(patient: _Patient, examples: int) -> None:
    area = "chat template, reward and rollouts"
    backend = backend_of(patient.config)
    needed = ["model.unreadable", "memory.too-much", "data.unreadable", "endpoint.failed"]
    if backend is not None and backend.samples:
        needed += Backend.FAULTS
    if patient.has(*needed) or patient.data is None:
        patient.left_out.append(f"{area}: they need what has an error above")
        return
    patient.looked_at.append(area)
    tried = Tried(patient.config, patient.registry, patient.data, examples)
    try:
        if record_dataset_of(patient.config) is None:
            patient.findings += await try_out(tried)
        else:
            patient.findings += await read_records(tried)
    except NatFinetuneError as failure:
        builder = builder_of(patient.config)
        what = f"`_type: {builder.component_name}`" if builder is not None else "the run"
        message = f"{type(failure).__name__} before {what} had anything to train on: {failure}"
        patient.findings.append(error("stopped", message, "see the message: a run would end with it"))
