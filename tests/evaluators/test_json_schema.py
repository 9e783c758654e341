"""`json_schema`: 0 says why; nothing is fetched."""

import json
import sys
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.errors import ConfigError
from nat_finetune.evaluators.json_schema import JSONSchemaConfig, json_schema
from nat_finetune.types import Example, Rollout

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
BUILDER = SimpleNamespace(entry_name="format")


async def score(answer, **config):
    config = {"schema": SCHEMA} | config if "schema_file" not in config else config
    async for evaluate in json_schema(JSONSchemaConfig(**config), BUILDER):
        return await evaluate(Example(1, "x"), Rollout("r", 1, 0, 0, (), output=answer))


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        ('{"a": 1}', 1.0, None),
        ({"a": 1}, 1.0, None),
        ('{"a": "1"}', 0.0, "$.a: '1' is not of type 'integer'"),
        ("{}", 0.0, "$: 'a' is a required property"),
        ("{'a': 1}", 0.0, "no JSON: Expecting property name"),
        ('{"a": NaN}', 0.0, "no JSON: NaN is not JSON"),
        ("[" * 100_000, 0.0, "no JSON: "),
        ('text ```json\n{"a": 1}\n```', 0.0, "no JSON: "),
    ],
)
async def test_scores(answer, value, reason):
    said = await score(answer)
    assert said.value == value
    assert (said.reasoning or "").startswith(reason or "")


async def test_the_last_fenced_block():
    assert (await score('so:\n```json\n{}\n```\nno:\n```\n{"a": 1}\n```', find="fenced")).value == 1.0
    assert (await score('{"a": 1}', find="fenced")).value == 1.0


async def test_a_schema_file(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert (await score('{"a": 1}', schema_file=str(path))).value == 1.0
    path.write_text('{"type": "objekt"}')
    with pytest.raises(ConfigError, match=r"eval.evaluators.format: no JSON Schema"):
        await score("{}", schema_file=str(path))


async def test_nothing_is_fetched():
    with pytest.raises(Exception, match="Unresolvable"):
        await score("{}", schema={"$ref": "http://127.0.0.1:1/schema.json"})


async def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigError, match=r"nat-finetune\[json\]"):
        await score("{}")


def test_one_schema():
    with pytest.raises(ValidationError, match="either schema or schema_file"):
        JSONSchemaConfig()
