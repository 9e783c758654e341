"""Arguments as users write them."""

from __future__ import annotations

import pytest

from nat_finetune.cli.arguments import normalised


@pytest.mark.parametrize(
    ("given", "arguments", "debug"),
    [
        (["run", "c.yml"], ["run", "c.yml"], False),
        (["run", "--debug", "c.yml"], ["run", "c.yml"], True),
        (["--debug", "run"], ["run"], True),
        (["run", "-o", "a.b=1", "c.yml"], ["run", "-o", "a.b=1", "c.yml"], False),
        (["run", "-o", "a.b", "1", "c.yml"], ["run", "-o", "a.b=1", "c.yml"], False),
        (["run", "--override", "a", "x=y"], ["run", "--override", "a=x=y"], False),
        (["run", "-o", "a", "-1", "-o", "b=2"], ["run", "-o", "a=-1", "-o", "b=2"], False),
        (["run", "-o", "a"], ["run", "-o", "a"], False),
        (["run", "--", "-o", "a", "1", "--debug"], ["run", "--", "-o", "a", "1", "--debug"], False),
    ],
)
def test_normalised(given, arguments, debug):
    assert normalised(given) == (arguments, debug)
