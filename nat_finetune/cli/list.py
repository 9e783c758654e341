"""`nat-finetune list`: every component that a config may name, where it comes from, and plugins that are broken."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from nat_finetune.cli.options import Json
from nat_finetune.registry import BrokenPlugin, Kind, Registration, Registry


def list_components(
    kind: Annotated[Kind | None, typer.Option("--kind", help="only those of one section", show_default=False)] = None,
    json: Json = False,
) -> None:
    """List installed components by section: `_type`, version, origin and what it is."""
    registry = Registry.installed()
    components = [component for component in registry if kind in (None, component.kind)]
    if json:
        broken = [_broken(plugin) for plugin in registry.broken]
        print(jsonlib.dumps({"components": [_component(c) for c in components], "broken": broken}, indent=2))
        return
    _print_components(components)
    for plugin in registry.broken:
        print(f"\nBROKEN  {plugin.name} = {plugin.value} ({plugin.origin}): {plugin.reason}")
        print("        its components can't be used; `nat-finetune list --json` shows the traceback")


def _print_components(components: list[Registration]) -> None:
    names = max((len(component.name) for component in components), default=0)
    origins = max((len(component.origin) for component in components), default=0)
    section = None
    for component in components:
        if component.kind is not section:
            print(component.kind.value if section is None else f"\n{component.kind.value}")
            section = component.kind
        version = f"v{component.config_type.component_version}"
        print(f"  {component.name:<{names}}  {version:<3}  {component.origin:<{origins}}  {component.summary}")


def _component(component: Registration) -> dict[str, Any]:
    return {
        "kind": component.kind.value,
        "name": component.name,
        "version": component.config_type.component_version,
        "origin": component.origin,
        "summary": component.summary,
    }


def _broken(plugin: BrokenPlugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "value": plugin.value,
        "origin": plugin.origin,
        "reason": plugin.reason,
        "traceback": plugin.traceback,
    }
