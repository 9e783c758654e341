"""The config file as JSON Schema (draft 2020-12), all installed components included, for editors and other tools.

It says of one file what can be said without its environment and its base files: keys, types, ranges, `_type`s. References
between entries, and whether the parts fit together, are `validate`'s to say. Where a file has a `base:`, any key may come from
there, so only the names of its sections are checked.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from nat_finetune.config.descriptions import field_descriptions
from nat_finetune.config.schema import COMPONENT_OF, RunConfig
from nat_finetune.config.shape import spellings
from nat_finetune.registry import Kind, Registration, Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
VARIABLE = "variable"
"""Definition of a text with `${VAR}` in it, which may stand in place of any scalar."""


def json_schema(registry: Registry) -> dict[str, Any]:
    """The schema of a config file, for the components of a registry."""
    components = list(registry)
    models: list[type[BaseModel]] = [RunConfig, *dict.fromkeys(component.config_type for component in components)]
    references, combined = models_json_schema([(model, "validation") for model in models], schema_generator=_Generator)
    names = {model: reference["$ref"].removeprefix("#/$defs/") for (model, _), reference in references.items()}
    definitions = combined["$defs"]
    root = definitions.pop(names[RunConfig])
    definitions |= {kind.value: _any_of_kind(kind, components, names) for kind in Kind}
    for component in components:
        _say_type(definitions[names[component.config_type]])
    definitions = {name: _with_variables(definition) for name, definition in definitions.items()}
    definitions[VARIABLE] = {"type": "string", "pattern": r"\$\{[A-Za-z_]", "description": "a value with ${VAR} in it"}
    root = _with_variables(root)
    root["properties"]["base"] = {"type": "string", "description": "A file that this one builds on, relative to it."}
    names_only = {"properties": dict.fromkeys(root["properties"], True), "additionalProperties": False}
    return {
        "$schema": DIALECT,
        "title": "nat-finetune config",
        "type": "object",
        "if": {"required": ["base"]},
        "then": names_only,
        "else": root,
        "$defs": definitions,
    }


class _Generator(GenerateJsonSchema):
    """pydantic's schema with the texts of the fields, and all spellings of a key."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        texts = field_descriptions(model)
        properties: dict[str, Any] = made.get("properties", {})
        for name in model.model_fields:
            keys = spellings(model, name)
            own = next((properties[key] for key in keys if key in properties), None)
            if own is not None:
                own.pop("title", None)
                own |= {"description": texts[name]} if name in texts else {}
                properties |= dict.fromkeys(keys, own)
                _allow_any_spelling(made, keys)
        made.pop("title", None)
        return made


def _allow_any_spelling(made: JsonSchemaValue, keys: list[str]) -> None:
    """A required key with several spellings is required under one of them."""
    required: list[str] = made.get("required", [])
    if len(keys) == 1 or not set(keys) & set(required):
        return
    made["required"] = [key for key in required if key not in keys]
    made.setdefault("allOf", []).append({"anyOf": [{"required": [key]} for key in keys]})


def _say_type(definition: JsonSchemaValue) -> None:
    """A component's definition with the key that names it; `type` is NAT's other spelling."""
    properties: dict[str, Any] = definition.setdefault("properties", {})
    properties.setdefault("_type", True)
    properties.setdefault("type", True)


def _any_of_kind(kind: Kind, components: list[Registration], names: dict[type[Any], str]) -> dict[str, Any]:
    """An entry of a section: its `_type` decides what the rest may be."""
    own = [component for component in components if component.kind is kind]
    known = {"enum": [component.name for component in own], "description": "which component this is"}
    cases = [
        {
            "if": {"anyOf": [{"required": [key], "properties": {key: {"const": component.name}}} for key in ("_type", "type")]},
            "then": {"$ref": f"#/$defs/{names[component.config_type]}"},
        }
        for component in own
    ]
    spelled = [{"required": ["_type"], "properties": {"_type": known}}, {"required": ["type"], "properties": {"type": known}}]
    return {"type": "object", "if": {"required": ["_type"]}, "then": spelled[0], "else": spelled[1], "allOf": cases}


def _with_variables(schema: Any) -> Any:
    """The same schema where every scalar may also be a text with `${VAR}` in it, and components are looked up."""
    if isinstance(schema, list):
        return [_with_variables(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if COMPONENT_OF in schema:
        rest = {key: value for key, value in schema.items() if key != COMPONENT_OF}
        return {**rest, "$ref": f"#/$defs/{schema[COMPONENT_OF]}"}
    changed = {key: value if key in ("default", "const", "if") else _with_variables(value) for key, value in schema.items()}
    if changed.get("type") not in ("integer", "number", "boolean") and "enum" not in changed:
        return changed
    about = {key: changed.pop(key) for key in ("description", "default") if key in changed}
    return {**about, "anyOf": [changed, {"$ref": f"#/$defs/{VARIABLE}"}]}
