"""The Python environment that has TRL: which versions it holds, and whether the scripts were tested with them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping

from nat_finetune.errors import BackendError

TESTED: Mapping[str, str] = {"trl": "1.16", "torch": "2", "transformers": "5", "datasets": "5", "accelerate": "1", "peft": "0"}
"""Package -> the beginning of its version; peft only where an adapter is trained."""
_ASK = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        found[name] = None
print(json.dumps(found | {"python": sys.version.split()[0]}))
"""
_SECONDS = 60


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for another Python: without what points to ours, offline unless somebody said otherwise."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in variables.items() if name not in ours}
    return {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"} | kept


async def versions(python: str, names: tuple[str, ...]) -> dict[str, str | None]:
    """The versions of packages in that environment, None for what it lacks, and its own as `python`.

    Raises:
        BackendError: it can't say.
    """
    process = await asyncio.create_subprocess_exec(
        python, "-c", _ASK, *names,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment_of(os.environ),
    )  # fmt: skip
    try:
        async with asyncio.timeout(_SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise BackendError(f"python: {python} gave no answer in {_SECONDS} s") from None
    if process.returncode:
        raise BackendError(f"python: {python} can't say its versions: {err.decode(errors='replace').strip()[-300:]}")
    found: dict[str, str | None] = json.loads(out)
    return found


def misfits(found: Mapping[str, str | None]) -> list[str]:
    """What is not as the scripts were tested with: expected, and found."""
    return [
        f"{name}: expected {wanted}.*, found {found[name] or 'none'}"
        for name, wanted in TESTED.items()
        if name in found and not f"{found[name]}.".startswith(f"{wanted}.")
    ]
