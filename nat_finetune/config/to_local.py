"""`migrate --to local`: the same training on one's own machine, for a config whose adapter sends it to NeMo Customizer or ART.

Settings go where they have an equivalent; what has none is listed, so that nothing changes meaning unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nat_finetune.config.versions import LEAST_GENERATIONS, Edit, Path, Put, Remove
from nat_finetune.errors import ConfigError, Problem

MODEL = "${MODEL:?the model to train, a hub id, a folder or a .gguf file}"


@dataclass(slots=True)
class Conversion:
    """Edits, and the settings that have no equivalent."""

    edits: list[Edit] = field(default_factory=list)
    without_equivalent: list[str] = field(default_factory=list)

    def replace(self, path: Path, value: Any, reason: str) -> None:
        """Put a whole entry in another's place."""
        self.edits.append(Put(path, value, reason))

    def lose(self, path: Path, entry: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        """List those keys of an entry that were set, with why they have no equivalent."""
        for key, reason in keys.items():
            if entry.get(key) is not None:
                self.without_equivalent.append(f"{'.'.join((*path, key))}: {reason}")


def to_local(config: Mapping[str, Any], model: str | None = None) -> Conversion:
    """What makes the local backend train what a remote one trained.

    Args:
        config: plain data of today's schema.
        model: hub id, folder or file of the model to train, where the config does not say it in that form.

    Raises:
        ConfigError: the config does not name a remote adapter that is known.
    """
    finetuning = _block(config, "finetuning")
    named = finetuning.get("trainer_adapter")
    adapter = _entry(config, "trainer_adapters", named)
    kind = adapter.get("_type", adapter.get("type"))
    made = Conversion()
    source: str | None = None  # of the model, where the adapter says it in a form that the local backend reads
    if kind == "nemo_customizer_trainer_adapter":
        _customizer(made, ("trainer_adapters", str(named)), adapter)
    elif kind == "openpipe_art_trainer_adapter":
        source = _art(made, ("trainer_adapters", str(named)), adapter)
    else:
        known = "nemo_customizer_trainer_adapter, openpipe_art_trainer_adapter"
        message = f"--to local replaces a remote adapter, found {kind!r}"
        raise ConfigError(Problem(message, key="finetuning.trainer_adapter", hint=f"known: {known}"))
    _builder(made, config, finetuning)
    _trainer(made, config, finetuning)
    _llm(made, config, finetuning, model or source or MODEL)
    return made


_REMOTE = "the local backend needs no service"
_NEMO_LOST = {
    **dict.fromkeys(("entity_host", "datastore_host", "hf_token", "namespace", "create_namespace_if_missing"), _REMOTE),
    **dict.fromkeys(("dataset_name", "dataset_output_dir"), "training data stay in the run folder"),
    **dict.fromkeys(("poll_interval_seconds", "max_consecutive_status_failures"), _REMOTE),
    "customization_config": "the model is `llms.<target_model>.model`",
    "use_full_message_history": "the whole conversation is always the context",
    "deploy_on_completion": "`nat-finetune export` writes the model for a server of yours",
    "deployment_config": "`nat-finetune export` writes the model for a server of yours",
    "deployment_timeout_seconds": "`nat-finetune export` writes the model for a server of yours",
}


def _customizer(made: Conversion, path: Path, adapter: Mapping[str, Any]) -> None:
    given = _block(adapter, "hyperparameters")
    dpo = _block(given, "dpo")
    if given.get("training_type", "dpo") != "dpo":
        message = f"--to local knows training_type: dpo, found {given['training_type']!r}"
        raise ConfigError(Problem(message, key=".".join((*path, "hyperparameters.training_type"))))
    algorithm: dict[str, Any] = {"name": "dpo", "beta": dpo.get("ref_policy_kl_penalty", 0.1)}
    algorithm |= {key: dpo[key] for key in ("preference_loss_weight", "sft_loss_weight") if key in dpo}
    if dpo.get("preference_average_log_probs"):
        algorithm["loss"] = "sigmoid_norm"
    entry: dict[str, Any] = {"_type": "local_trainer_adapter", "algorithm": algorithm}
    if given.get("finetuning_type", "all_weights") != "all_weights":
        entry["lora"] = {"rank": 16, "alpha": 32}
    entry |= {
        "learning_rate": given.get("learning_rate", 5e-5),
        "epochs": given.get("epochs", 3),
        "batch_size": given.get("batch_size", 4),
    }
    made.replace(path, entry, "trains in this process, with NAT's settings and defaults")
    made.lose(path, adapter, _NEMO_LOST)


_ART_LOST = {
    "name": _REMOTE, "project": _REMOTE, "api_key": _REMOTE, "ip": _REMOTE, "port": _REMOTE,
    "delete_old_checkpoints": "finetuning.keep_checkpoints says how many are kept",
    "init_args": "`llms.<target_model>` says how the model is loaded",
    "engine_args": "the local engine sizes itself", "server_config": _REMOTE,
}  # fmt: skip

_ART_KEPT = ("weight_decay", "max_grad_norm", "warmup_steps")


def _art(made: Conversion, path: Path, adapter: Mapping[str, Any]) -> str | None:
    backend, training = _block(adapter, "backend"), _block(adapter, "training")
    algorithm: dict[str, Any] = {"name": "grpo"}
    if training.get("beta"):
        algorithm["kl_coefficient"] = training["beta"]
    entry: dict[str, Any] = {
        "_type": "local_trainer_adapter",
        "algorithm": algorithm,
        "lora": {"rank": 8, "alpha": 16},
        "learning_rate": training.get("learning_rate", 5e-5),
    }
    entry |= {key: training[key] for key in _ART_KEPT if key in training}
    made.replace(path, entry, "trains in this process, with ART's rank, and the learning rate that NAT never sends")
    made.lose((*path, "backend"), backend, _ART_LOST)
    others = {key: "no equivalent key" for key in training if key not in ("learning_rate", "beta", *_ART_KEPT)}
    made.lose((*path, "training"), training, others)
    found = backend.get("base_model", "Qwen/Qwen2.5-7B-Instruct")
    return str(found)


def _builder(made: Conversion, config: Mapping[str, Any], finetuning: Mapping[str, Any]) -> None:
    name = finetuning.get("trajectory_builder")
    entry = _entry(config, "trajectory_builders", name)
    if entry.get("_type", entry.get("type")) == "openpipe_art_traj_builder":
        count = entry.get("num_generations", 2)
        kept = count if isinstance(count, int) and count >= 2 else LEAST_GENERATIONS
        reason = "groups of one example"
        if kept != count:
            reason += f"; {count} rollout of an example leaves nothing to compare it with"
        made.replace(("trajectory_builders", str(name)), {"_type": "grpo_traj_builder", "num_generations": kept}, reason)


_NEMO_TRAINER = ("num_runs", "continue_on_collection_error", "deduplicate_pairs", "max_pairs")


def _trainer(made: Conversion, config: Mapping[str, Any], finetuning: Mapping[str, Any]) -> None:
    name = finetuning.get("trainer")
    entry, path = _entry(config, "trainers", name), ("trainers", str(name))
    kind = entry.get("_type", entry.get("type"))
    if kind == "nemo_customizer_trainer":
        kept = {key: entry[key] for key in _NEMO_TRAINER if key in entry}
        made.replace(path, {"_type": "preference_trainer", **kept}, "the same order of steps")
        made.lose(path, entry, {"wait_for_completion": "the update runs in this process"})
        if "num_epochs" in finetuning:
            made.edits.append(Remove(("finetuning", "num_epochs"), "NAT's trainer ignores it: num_runs is what counts"))
    elif kind == "openpipe_art_trainer":
        made.replace(path, {"_type": "on_policy_trainer"}, "the same order of steps")


_OF_AN_ENDPOINT = (
    "base_url", "api_key", "api_type", "max_retries", "request_timeout", "verify_ssl", "do_auto_retry", "num_retries",
    "retry_on_status_codes", "retry_on_errors", "extra_body", "seed",
)  # fmt: skip


def _llm(made: Conversion, config: Mapping[str, Any], finetuning: Mapping[str, Any], model: str) -> None:
    llms = config.get("llms")
    name = finetuning.get("target_model") or (next(iter(llms)) if isinstance(llms, Mapping) and len(llms) == 1 else None)
    entry, path = _entry(config, "llms", name), ("llms", str(name))
    kept = {key: entry[key] for key in ("temperature", "max_tokens") if key in entry}
    reason = "the model that is trained, which samples too"
    if entry.get("top_p") not in (None, 1, 1.0):
        made.without_equivalent.append(f"{'.'.join(path)}.top_p: the sampled distribution must be the trained one")
    made.replace(path, {"_type": "local", "model": model, **kept}, reason)
    made.lose(path, entry, dict.fromkeys(_OF_AN_ENDPOINT, "the model is in this process"))


def _entry(config: Mapping[str, Any], section: str, name: Any) -> Mapping[str, Any]:
    found = config.get(section)
    entry = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(entry, Mapping):
        said = "nothing is named here, so there is nothing to replace" if name is None else f"{section} has no entry {name!r}"
        names = ", ".join(map(str, found)) if isinstance(found, Mapping) else ""
        hint = f"entries of {section}: {names or 'none'}"
        raise ConfigError(Problem(said, key=f"finetuning.{_NAMED_BY.get(section, 'target_model')}", hint=hint))
    return entry


_NAMED_BY = {"trainer_adapters": "trainer_adapter", "trajectory_builders": "trajectory_builder", "trainers": "trainer"}


def _block(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = entry.get(key)
    return found if isinstance(found, Mapping) else {}
