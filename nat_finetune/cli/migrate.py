"""`nat-finetune migrate`: a config of an older schema, or of NeMo Agent Toolkit, as one of today's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nat_finetune.errors import ConfigError, Problem
from nat_finetune.whole_file import write_whole


def migrate(
    config: Annotated[Path, typer.Argument(help="the YAML file to rewrite", metavar="CONFIG")],
    to: Annotated[
        Literal["local"] | None, typer.Option("--to", help="train in this process what a service trained", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="with --to local: the model to train", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="write here and leave CONFIG as it is", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="change nothing; exit code 1 if something would change")] = False,
) -> None:
    """Rewrite a config for today's schema, comments and order kept, and say what changed and why."""
    from nat_finetune.config.nodes import parse
    from nat_finetune.config.rewrite import rewrite
    from nat_finetune.config.schema import CONFIG_VERSION
    from nat_finetune.config.to_local import Conversion, to_local
    from nat_finetune.config.versions import edits_to_current, version_of

    if model is not None and to is None:
        raise ConfigError("--model goes with --to local")
    if model is not None and not model.strip():
        raise ConfigError("--model takes a hub id, a folder or a file, found nothing")
    text, newline = _read(config)
    data = parse(text, str(config)).plain()
    if not isinstance(data, dict):
        raise ConfigError(f"{config}: expected a mapping of sections")
    if version_of(data) not in range(CONFIG_VERSION + 1) or isinstance(version_of(data), bool):
        found = version_of(data)
        hint = f"this version of nat-finetune knows {CONFIG_VERSION}; leave it out of a config of NAT"
        raise ConfigError(Problem(f"config_version {found!r} is not known", "config_version", file=str(config), hint=hint))
    edits = edits_to_current(data)
    conversion = Conversion()
    if to == "local":
        current = parse(rewrite(text, edits), str(config)).plain()
        conversion = to_local(current, model)
        edits += conversion.edits
    for edit in edits:
        print(f"  {edit}")
    for lost in conversion.without_equivalent:
        print(f"  no equivalent: {lost}")
    if check or not edits:
        print(f"{config}: {len(edits)} changes to make" if edits else f"{config}: up to date")
        raise typer.Exit(1 if edits else 0)
    written = output or config
    write_whole(written, rewrite(text, edits), newline)
    print(f"{written}: written, {len(edits)} changes; check it with: nat-finetune validate {written}")


def _read(path: Path) -> tuple[str, str]:
    """The text with line feeds alone, and the line end that the file has."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n"), "\r\n" if "\r\n" in text else "\n"
