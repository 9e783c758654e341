"""`nat-finetune schema`: the config file as JSON Schema, for editors and other tools."""

from __future__ import annotations

import json

from nat_finetune.registry import Registry


def schema() -> None:
    """Print the JSON Schema of a config file, with every installed component; docs/config.md says how an editor uses it."""
    from nat_finetune.config.json_schema import json_schema

    print(json.dumps(json_schema(Registry.installed()), indent=2))
