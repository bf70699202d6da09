"""A column of free text becomes 32 numbers, the same for a row wherever it stands."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas_evidence.data.given import features_of
from nas_evidence.data.preparation import Preparation
from nas_evidence.data.source import source_in_memory
from nas_evidence.data.text import AXES, FEWEST_TEXTS

N = 260
WORDS = ("red", "green", "blue", "apple", "pear", "plum", "small", "large", "old", "new")


def titles(n: int = N) -> pd.DataFrame:
    """A table whose target is how much there is of one word in its titles."""
    draw = np.random.default_rng(4)
    texts = [" ".join(draw.choice(WORDS, 5)) + f" {i:03}" for i in range(n)]
    size = draw.normal(size=n).round(3)
    y = [text.split().count("apple") + 0.1 * s for text, s in zip(texts, size, strict=True)]
    return pd.DataFrame({"title": texts, "size": size, "y": np.round(y, 4)})


TABLE = titles()
ARRAYS = source_in_memory(TABLE, None, {"target": "y"}).arrays(seed=0)
assert ARRAYS.meaning.preparation is not None
TRAINED = ARRAYS.meaning.preparation


def test_the_sentence_says_what_became_of_the_text_and_how_to_leave_it_out() -> None:
    said = " ".join(ARRAYS.meaning.said)
    assert f"column 'title' is read as text, {AXES} features" in said
    assert "--drop title" in said
    assert "1 of text" in said
    assert TRAINED.places["title"] == [*range(1, 1 + AXES)]


def test_a_text_of_few_rows_is_left_out() -> None:
    few = source_in_memory(titles(FEWEST_TEXTS - 1), None, {"target": "y"}).arrays(seed=0)
    assert few.input_shape == (1,)
    assert "'title' is left out" in " ".join(few.meaning.said)


def test_names_of_few_words_are_left_out() -> None:
    names = TABLE.assign(title=TABLE["title"].str.split().str[-3:].str.join(" "))
    short = source_in_memory(names, None, {"target": "y"}).arrays(seed=0)
    assert short.input_shape == (1,)
    assert "'title' is left out" in " ".join(short.meaning.said)


def test_the_features_of_a_text_tell_what_is_in_it() -> None:
    x = np.column_stack([ARRAYS.x_train[:, 1:], np.ones(N)])
    counts = TABLE["title"].map(lambda text: text.split().count("apple"))
    fitted = x @ np.linalg.lstsq(x[:200], counts[:200], rcond=None)[0]
    assert np.corrcoef(fitted[200:], counts[200:])[0, 1] > 0.9


def test_the_first_axis_has_standard_deviation_1_and_later_ones_less() -> None:
    spread = ARRAYS.x_train[:, 1:].std(0)
    assert spread[0] == pytest.approx(1, abs=0.01)
    assert (spread[1:] <= spread[0] + 0.01).all()
    assert not TRAINED.scaled[1:].any()
    np.testing.assert_allclose(ARRAYS.x_train[:, 1:].mean(0), 0, atol=1e-5)


def test_the_preparation_travels_as_json_of_less_than_a_megabyte() -> None:
    text = TRAINED.to_json()
    assert len(text) < 1_000_000
    again = Preparation.from_json(json.dumps(json.loads(text)))
    np.testing.assert_array_equal(
        features_of(TABLE[:7], again).inputs, features_of(TABLE[:7], TRAINED).inputs
    )


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(texts=st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=5))
def test_any_text_is_predicted_alone_as_among_others(texts: list[str | None]) -> None:
    new = pd.DataFrame({"title": pd.Series(texts, dtype=object), "size": 0.5})
    together = features_of(new, TRAINED).inputs
    assert np.isfinite(together).all()
    alone = [features_of(new.iloc[[i]], TRAINED).inputs[0] for i in range(len(new))]
    np.testing.assert_array_equal(together, alone)


def test_a_missing_text_is_the_mean_of_training_and_is_told() -> None:
    new = TABLE[:3].assign(title=["red apple", None, "never seen, zürich"])
    found = features_of(new, TRAINED)
    np.testing.assert_array_equal(found.inputs[1, 1:], np.zeros(AXES))
    assert any(found.inputs[2, 1:])
    assert found.doubts == ("column 'title': 1 missing cell, replaced by the mean of all texts",)
    empty = features_of(new.assign(title=None), TRAINED)
    np.testing.assert_array_equal(empty.inputs[:, 1:], np.zeros((3, AXES)))
    assert "column 'title' is empty" in empty.doubts[0]
