"""The weights that an update changes, and the reference that it may not leave too far behind."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nat_finetune.errors import BackendError
from nat_finetune.local.scores import bare_model


class TrainedWeights:
    """Every parameter of a model that requires a gradient, with float32 masters where the model's own are narrower.

    A bf16 weight can't take a step of 1e-5 of itself: the step is made on the master, and the model gets it rounded. Gradients
    of micro-batches are added up in float32 too.
    """

    def __init__(self, model: Any) -> None:
        self.by_name: dict[str, Tensor] = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        if not self.by_name:
            raise BackendError("the model has no parameter that trains")
        # transformers makes embeddings with padding_idx, which drops the input gradient of that row: with pad == EOS the
        # end-of-turn token would never be trained as an input.
        for module in bare_model(model).get_input_embeddings().modules():  # itself, or what an adapter is around
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = None
        self._masters = {
            name: parameter if parameter.dtype == torch.float32 else parameter.detach().float().requires_grad_()
            for name, parameter in self.by_name.items()
        }

    @property
    def masters(self) -> dict[str, Tensor]:
        """The float32 weights that the optimiser steps on, by name; a float32 model's are the parameters themselves."""
        return self._masters

    @property
    def count(self) -> int:
        """Number of trained values."""
        return sum(parameter.numel() for parameter in self.by_name.values())

    def collect_gradients(self) -> None:
        """Add the model's gradients to the masters', and forget them; call it after each backward pass."""
        for name, parameter in self.by_name.items():
            master = self._masters[name]
            if master is parameter or parameter.grad is None:
                continue
            master.grad = parameter.grad.float() if master.grad is None else master.grad.add_(parameter.grad)
            parameter.grad = None

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for name, parameter in self.by_name.items():
            parameter.grad = self._masters[name].grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the masters' values, rounded to its own precision."""
        for name, parameter in self.by_name.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])

    def tensors(self) -> dict[str, Tensor]:
        """The masters as plain tensors, for a checkpoint."""
        return {name: master.detach() for name, master in self._masters.items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved values.

        Raises:
            BackendError: they are not those of this model.
        """
        if tensors.keys() != self._masters.keys():
            differing = sorted(tensors.keys() ^ self._masters.keys())
            raise BackendError(
                f"the checkpoint trains other weights than this config ({len(differing)} names differ, such as {differing[0]}"
                "): resume with the model and lora settings that it was made with"
            )
        for name, tensor in tensors.items():
            if tensor.shape != self._masters[name].shape:
                raise BackendError(
                    f"the checkpoint's {name} is {tuple(tensor.shape)}, the model's {tuple(self._masters[name].shape)}: "
                    "resume with the model and lora settings that it was made with"
                )
            self._masters[name].copy_(tensor)
        self.publish()

    def digest(self) -> str:
        """SHA-256 over names, shapes and values of the trained weights, as the model holds them."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.by_name.items()):
            digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}".encode())
            digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


class Reference:
    """The policy that training is held against: as it was before any update, or as it was when `hold` was called.

    Before any update it is the same model with the adapter off, or a frozen copy of the weights. The copy is made at once; make
    the reference before any checkpoint is loaded.
    """

    def __init__(self, model: Any, weights: TrainedWeights) -> None:
        from peft import PeftModel

        self.version = 0
        """Of the policy that it is."""
        self._adapter = model if isinstance(model, PeftModel) else None
        self._weights = weights
        self._frozen = {} if self._adapter else self._copy()
        self.digest = "untrained"
        """Of the weights that make it another policy than the untrained one."""

    def hold(self, version: int) -> None:
        """From now on the reference is the policy as it is now, of this version."""
        if version != self.version:
            self._frozen, self.version, self.digest = self._copy(), version, self._weights.digest()

    def tensors(self) -> dict[str, Tensor]:
        """What a resume needs to have it again; nothing where it is the untrained policy."""
        return dict(self._frozen) if self.version else {}

    def load(self, tensors: dict[str, Tensor], version: int, digest: str) -> None:
        """Be what was saved."""
        self._frozen, self.version, self.digest = tensors, version, digest

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the model computes what the reference would; the current weights are back afterwards, bit for bit."""
        if self._adapter is not None and self.version == 0:
            with self._adapter.disable_adapter():
                yield
            return
        parameters = self._weights.by_name
        current = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self._frozen[name].to(parameter.device)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = current[name]

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().to("cpu", copy=True) for name, value in self._weights.by_name.items()}
