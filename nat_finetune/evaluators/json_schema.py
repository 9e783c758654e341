"""`json_schema`: 1 where the answer is JSON that fits a schema, else 0 with the first thing that does not fit."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from nat_finetune.answers import AnswerEvaluator, AnswerEvaluatorConfig
from nat_finetune.config.component import FilePath
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.interfaces import Builder, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Score

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class JSONSchemaConfig(AnswerEvaluatorConfig, name="json_schema"):
    """1 where the answer is JSON that fits the schema, else 0. Needs the extra `json`."""

    inline: Annotated[dict[str, Any] | None, Field(validation_alias=AliasChoices("schema"))] = None
    """The JSON Schema itself; draft 2020-12 where its `$schema` names no other."""
    schema_file: FilePath | None = None
    """A file that holds it."""
    find: Literal["whole", "fenced"] = "whole"
    """`whole`: the answer is the JSON text; `fenced`: the last block between ``` lines, else the whole answer."""

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.inline is None) == (self.schema_file is None):
            raise ValueError("give either schema or schema_file")
        return self


@register_evaluator(config_type=JSONSchemaConfig)
async def json_schema(config: JSONSchemaConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the evaluator."""
    key = f"eval.evaluators.{builder.entry_name}"
    validator = _validator(_schema(config, key), key)

    def score(answer: Any, target: Any) -> Score:
        if isinstance(answer, str):
            try:
                answer = json.loads(_found(answer, config.find), parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                return Score(0.0, f"no JSON: {error or type(error).__name__}")
        errors = sorted(validator.iter_errors(answer), key=lambda error: (len(error.absolute_path), error.json_path))
        return Score(0.0, f"{errors[0].json_path}: {errors[0].message[:300]}") if errors else Score(1.0)

    yield AnswerEvaluator(config.answer_from, score)


def _found(text: str, find: str) -> str:
    blocks = _FENCE.findall(text) if find == "fenced" else []
    return str(blocks[-1]) if blocks else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _schema(config: JSONSchemaConfig, key: str) -> Any:
    if config.schema_file is None:
        return config.inline
    try:
        return json.loads(Path(config.schema_file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(Problem(f"{config.schema_file} can't be read: {error.strerror}", f"{key}.schema_file")) from None
    except ValueError as error:
        raise ConfigError(Problem(f"{config.schema_file} is no JSON: {error}", f"{key}.schema_file")) from None


def _validator(schema: Any, key: str) -> Validator:
    """A validator that fetches nothing: a `$ref` leads to somewhere in the schema itself.

    Raises:
        ConfigError: the library is not installed, or the schema is none.
    """
    try:
        from jsonschema import SchemaError, validators
        from referencing import Registry
    except ImportError:
        hint = "pip install 'nat-finetune[json]'"
        raise ConfigError(Problem("`_type: json_schema` needs jsonschema, which is not installed", key, hint=hint)) from None
    draft = validators.validator_for(schema, default=validators.validator_for({}))
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(Problem(f"no JSON Schema: {error.json_path}: {error.message}", key)) from None
    made: Validator = draft(schema, registry=Registry())
    return made
