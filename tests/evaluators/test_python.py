"""`python`: a function of the environment, named by the config."""

from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.errors import ConfigError
from nat_finetune.evaluators.python import PythonConfig, python
from nat_finetune.types import Example, Rollout, Score, ScoreRange

SOURCE = """
from nat_finetune.types import Score
LIMIT = 3
def plain(example, rollout, *, bonus=0.0):
    return 0.5 + bonus
async def later(example, rollout):
    return Score(1.0, "because")
def unknown(example, rollout):
    return None
"""


@pytest.fixture(autouse=True)
def scores(tmp_path, monkeypatch):
    (tmp_path / "my_scores.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("import no_such_module_there")
    monkeypatch.syspath_prepend(tmp_path)


async def score(function, **config):
    async for evaluate in python(PythonConfig(function=function, **config), SimpleNamespace(entry_name="mine")):
        return await evaluate(Example(1, "x"), Rollout("r", 1, 0, 0, ())), evaluate.score_range


async def test_what_the_function_says():
    assert await score("my_scores:plain") == (0.5, ScoreRange())
    assert await score("my_scores.plain", arguments={"bonus": 0.25}, low=0, high=1) == (0.75, ScoreRange(0.0, 1.0))
    assert (await score("my_scores:later"))[0] == Score(1.0, "because")
    assert (await score("my_scores:unknown"))[0] is None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("my_scroes:plain", "module my_scroes can't be imported: ModuleNotFoundError"),
        ("my_broken:plain", "no_such_module_there"),
        ("my_scores:plian", "my_scores has no function 'plian' .*plain"),
        ("my_scores:LIMIT", "my_scores.LIMIT can't be called"),
    ],
)
async def test_errors_name_what_is_wrong(function, words):
    with pytest.raises(ConfigError, match=words):
        await score(function)


@pytest.mark.parametrize("function", ["lambda e, r: 1", "os.system('x')", "plain", "a:b:c", "../x:y"])
def test_only_names(function):
    with pytest.raises(ValidationError):
        PythonConfig(function=function)
