"""Arguments in the forms that users write them, before typer sees them."""

from __future__ import annotations

from collections.abc import Sequence


def normalised(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, which may stand anywhere, and with NAT's `-o path value` as `-o path=value`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = [argument for argument in arguments[:end] if argument != "--debug"]
    done: list[str] = []
    position = 0
    while position < len(given):
        argument, following = given[position], given[position + 1 : position + 3]
        if argument in ("-o", "--override") and len(following) == 2 and "=" not in following[0]:
            done += [argument, "=".join(following)]
            position += 3
        else:
            done.append(argument)
            position += 1
    return done + list(arguments[end:]), "--debug" in arguments[:end]
