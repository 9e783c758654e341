"""Whether a model and its training fit the device: counted from shapes, without loading anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nat_finetune.adapters.local_settings import LocalTrainerAdapterConfig
from nat_finetune.checks.doctor.chosen import local_adapter_of, target_llm_of
from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.checks.doctor.weights import ModelSize
from nat_finetune.config.schema import RunConfig
from nat_finetune.llms.local import LocalLLMConfig
from nat_finetune.local.ram import free_ram
from nat_finetune.types import Example

TIGHT = 0.85
"""Share of the device's memory from which there is little left for what is not counted."""
CPU_TOKENS, GPU_TOKENS = 2048, 8192
"""Tokens of a micro-batch where the config names none and they fit (see local/budget.py)."""
LOGIT_BYTES = 3 * (1 << 27)
"""Logits are held in pieces of 128 MiB: them, their gradient and one copy."""
HIDDEN_COPIES = 17
"""Activations that a layer keeps for its backward pass, in sizes of its hidden state (34 bytes a value in 16 bits:
arXiv:2205.05198, table 2, without attention's own, which SDPA does not keep)."""
_UNCOUNTED = "not counted: longer conversations, other llms and services on the device, the framework's own memory"
CHARACTERS = 3
"""Of an input to a token, cautiously."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where the model would be."""

    name: str
    """`cuda`, `mps` or `cpu`."""
    bytes_free: int | None
    """None: not known."""

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight under `dtype: auto`."""
        return 4 if self.name == "cpu" else 2


def device_of(llm: LocalLLMConfig) -> Device:
    """The device that `device` names, and its free memory now.

    Raises:
        ConfigError: it is not there.
    """
    if llm.device == "cpu" or (llm.device == "auto" and not _may_have_gpu()):
        return Device("cpu", free_ram())
    import torch

    from nat_finetune.local.model import pick_device

    device = pick_device(llm.device)
    if device.type == "cuda":
        return Device("cuda", torch.cuda.mem_get_info(device)[0])
    return Device(device.type, free_ram())


def _may_have_gpu() -> bool:
    """Whether torch has to be asked, which takes seconds to load: a Linux without a driver's files has no GPU."""
    files = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/kfd", "/dev/dxg")
    return sys.platform != "linux" or any(Path(file).exists() for file in files)


def guessed_tokens(examples: Sequence[Example], llm: LocalLLMConfig, size: ModelSize) -> int:
    """Tokens of one call: the longest input, and as many as a completion may have; no more than the context holds."""
    longest = max((len(str(example.input)) for example in examples), default=0)
    limits = [limit for limit in (llm.max_context, size.context) if limit is not None]
    return min([longest // CHARACTERS + llm.max_tokens, *limits])


def memory_parts(
    size: ModelSize, llm: LocalLLMConfig, adapter: LocalTrainerAdapterConfig, device: Device, *, concurrency: int, tokens: int
) -> dict[str, int]:
    """Bytes by what they are for; `tokens` of prompt and completion are held for each of `concurrency` completions."""
    width = {"float32": 4, "bfloat16": 2, "float16": 2}.get(llm.dtype, device.value_bytes)
    weights = size.parameters * width
    if adapter.lora is not None:
        trained = size.adapter_parameters(adapter.lora.rank, adapter.lora.settings().target_modules)
        masters, model_gradients = trained * 4, 0
    else:
        trained = size.parameters
        masters, model_gradients = (0 if width == 4 else trained * 4), (0 if width == 4 else trained * width)
    microbatch = adapter.max_tokens_per_microbatch
    if microbatch == "auto":
        microbatch = CPU_TOKENS if device.name == "cpu" else GPU_TOKENS
    kept = 1 if adapter.activation_checkpointing else HIDDEN_COPIES
    # While a full model is held against its reference, the frozen copy is on the device too; an adapter is just switched off.
    reference = weights if adapter.lora is None and adapter.algorithm.settings().needs_reference else 0
    parts = {
        "weights": weights,
        # See local/fast_linear.py: float32 on a CPU is sampled from a second layout of the weights.
        "weights laid out for sampling": weights if device.name == "cpu" and width == 4 else 0,
        "trained weights in float32": masters,
        "gradients": trained * 4 + model_gradients,
        "AdamW": trained * 8,
        "reference": reference,
        "keys and values": 2 * size.layers * size.kv_width * width * min(concurrency, llm.max_batch) * tokens,
        "keys and values of earlier calls": llm.prefix_cache_mib << 20,
        "activations": size.layers * size.hidden * width * kept * microbatch,
        "logits": min(LOGIT_BYTES, 3 * 4 * size.vocabulary * microbatch),
    }
    return {name: count for name, count in parts.items() if count}


def memory_findings(config: RunConfig, size: ModelSize, device: Device, tokens: int) -> Iterator[Finding]:
    """The estimate, held against what is free; `tokens` are guessed for one completion with its prompt."""
    adapter, (name, llm) = local_adapter_of(config), target_llm_of(config)
    if adapter is None or not isinstance(llm, LocalLLMConfig):
        return
    concurrency = config.eval.general.max_concurrency
    parts = memory_parts(size, llm, adapter, device, concurrency=concurrency, tokens=tokens)
    needed, key = sum(parts.values()), f"llms.{name}.model"
    message = f"about {gib(needed)} on {device.name} ({shown(parts)}); {tokens:,} tokens a call, guessed; {_UNCOUNTED}"
    free = device.bytes_free
    fix = _fix(adapter, parts)
    if free is None:
        yield note("memory.estimate", f"{message}; how much is free is not known here", "compare it with your device", key)
    elif needed > free:
        yield error("memory.too-much", f"{message}: more than the {gib(free)} that are free", fix, key)
    elif needed > TIGHT * free:
        yield warning("memory.tight", f"{message}: of {gib(free)} that are free", fix, key)
    else:
        yield note("memory.estimate", f"{message}; {gib(free)} are free", "nothing has to be done", key)


def _fix(adapter: LocalTrainerAdapterConfig, parts: Mapping[str, int]) -> str:
    """What helps against the largest part that can be helped."""
    helps = {"keys and values": "lower llms.NAME.max_batch or max_tokens"}
    helps |= dict.fromkeys(("activations", "logits"), "lower max_tokens_per_microbatch, or set activation_checkpointing: true")
    if adapter.lora is None:
        trained = ("trained weights in float32", "gradients", "AdamW", "reference")
        helps |= dict.fromkeys(trained, "train an adapter: `lora: {rank: 16, alpha: 32}`")
    largest = max(parts, key=lambda part: parts[part] if part in helps else -1)
    return f"{helps[largest]}; or take a smaller model, or a larger device"


def shown(parts: Mapping[str, int]) -> str:
    """Each part in GiB."""
    return ", ".join(f"{name} {gib(count)}" for name, count in parts.items())


def gib(count: int) -> str:
    """Bytes in GiB, or MiB where that says more."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
