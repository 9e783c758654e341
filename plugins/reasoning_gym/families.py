"""A task family of reasoning-gym, opened by name; what is wrong with the names is said before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nat_finetune.config.problems import nearest
from nat_finetune.errors import ConfigError, Problem, Stage, StageError, boundary


def open_family(family: str, settings: Mapping[str, Any], *, seed: int, size: int, key: str) -> Any:
    """The library's dataset of `size` tasks, each made when it is asked for.

    Raises:
        ConfigError: the library is not installed, has no such family, or the family no such setting or value; at `key`.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        hint = "pip install 'nat-finetune[reasoning-gym]'"
        raise ConfigError(Problem(f"the library reasoning-gym can't be imported: {error}", key, hint=hint)) from None
    if family not in DATASETS:
        hint = nearest(family, list(DATASETS)) or f"known: {', '.join(sorted(DATASETS))}"
        raise ConfigError(Problem(f"reasoning-gym has no family {family!r}", f"{key}.family", hint=hint))
    known = [field.name for field in fields(DATASETS[family][1]) if field.name not in ("seed", "size")]
    for name in settings:
        if name not in known:
            hint = nearest(name, known) or f"known: {', '.join(known)}"
            raise ConfigError(Problem(f"the family {family} has no setting {name!r}", f"{key}.settings.{name}", hint=hint))
    try:
        with boundary(Stage.WORKFLOW):
            return create_dataset(family, seed=seed, size=size, **settings)
    except StageError as error:
        raise ConfigError(Problem(f"the family {family} refuses its settings: {error}", f"{key}.settings")) from error
