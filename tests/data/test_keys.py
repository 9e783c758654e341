"""Identity with types."""

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.keys import context_key, example_key, require_unique, turn_key
from nat_finetune.errors import DataError

ids = st.one_of(st.integers(), st.text())


@given(ids, ids)
def test_keys_are_equal_exactly_where_ids_are_and_give_them_back(one, other):
    assert (example_key(one) == example_key(other)) == ((type(one), one) == (type(other), other))
    assert (turn_key(one) == turn_key(other)) == ((type(one), one) == (type(other), other))
    assert json.loads(example_key(one)) == one


def test_ids_that_stand_twice_are_named():
    require_unique([1, "1", "01"])
    with pytest.raises(DataError, match=r'2 ids stand more than once: 1, "a"'):
        require_unique([1, "a", "1", 1, "a"])


def test_a_text_is_one_user_message_and_the_order_of_fields_does_not_count():
    assert context_key("x") == context_key([{"content": "x", "role": "user"}])
    assert context_key([{"role": "user", "content": "x"}]) == context_key((MappingProxyType({"role": "user", "content": "x"}),))
    assert context_key("") != context_key([])


@pytest.mark.parametrize(
    "other",
    [
        [{"role": "user", "content": "x", "name": "n"}],
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "user", "content": "x"}],
        [{"role": "user", "content": "x "}],
        [{"role": "user", "content": None}],
    ],
)
def test_messages_keep_all_their_fields(other):
    assert context_key("x") != context_key(other)
