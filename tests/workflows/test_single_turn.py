"""`single_turn`: a dataset row becomes a question; the answer is the output."""

from types import SimpleNamespace

import pytest
from nat_finetune_workflows.single_turn.workflow import SingleTurnConfig, single_turn
from pydantic import ValidationError

from nat_finetune.errors import DataError
from nat_finetune.types import Example


async def ask(example, **config):
    asked = []

    class Model:
        async def chat(self, messages):
            asked.extend(messages)
            return SimpleNamespace(text=" 4\n")

    async def get_llm(name):
        return Model()

    async for workflow in single_turn(SingleTurnConfig(llm="policy", **config), SimpleNamespace(get_llm=get_llm)):
        return await workflow(example), asked


async def test_question_and_answer():
    example = Example(1, "2 + 2", "4", metadata={"unit": "cm"})
    assert await ask(example) == ("4", [{"role": "user", "content": "2 + 2"}])
    _, asked = await ask(example, prompt="{input} in {metadata.unit}?", system="Short.")
    assert asked == [{"role": "system", "content": "Short."}, {"role": "user", "content": "2 + 2 in cm?"}]


async def test_a_part_that_a_row_lacks_names_the_row():
    with pytest.raises(DataError, match=r"example 'a': .*metadata.unit"):
        await ask(Example("a", "2 + 2"), prompt="{metadata.unit}")


def test_the_known_answer_has_no_place():
    with pytest.raises(ValidationError, match=r"there is no \{target\}"):
        SingleTurnConfig(llm="policy", prompt="{target}")
