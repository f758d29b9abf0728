"""BERT's rule of masking."""

from typing import Any

import numpy as np

from trainer.data.masking import mask
from trainyard.config.training.models import IGNORED

RULE: dict[str, Any] = {"seed": 5, "probability": 0.15, "mask": 999, "vocabulary": 1000, "end": None}


def test_shares_are_berts() -> None:
    tokens = np.random.default_rng(0).integers(0, 900, (400, 128))
    inputs, labels = mask(tokens, np.arange(400), **RULE)
    chosen = labels != IGNORED
    assert np.array_equal(labels[chosen], tokens[chosen])
    assert np.array_equal(inputs[~chosen], tokens[~chosen])
    assert abs(chosen.mean() - 0.15) < 0.01
    masked, kept = (inputs == 999)[chosen].mean(), (inputs == tokens)[chosen].mean()
    assert abs(masked - 0.8) < 0.02
    assert abs(kept - 0.1) < 0.02
    drawn = inputs[chosen & (inputs != 999) & (inputs != tokens)]
    assert abs(drawn.mean() - 500) < 30


def test_as_many_are_chosen_in_each_sample() -> None:
    _, labels = mask(np.zeros((50, 128), dtype=np.int64), np.arange(50), **RULE)
    assert set((labels != IGNORED).sum(axis=1)) == {round(0.15 * 128)}


def test_a_sample_is_masked_by_its_position_alone() -> None:
    tokens = np.arange(8 * 16).reshape(8, 16)
    whole = mask(tokens, np.arange(8), **RULE)
    part = mask(tokens[5:6], np.array([5]), **RULE)
    assert all(np.array_equal(found[5:6], alone) for found, alone in zip(whole, part, strict=True))
    later, other = mask(tokens, np.arange(8) + 8, **RULE), mask(tokens, np.arange(8), **RULE | {"seed": 6})
    assert not np.array_equal(whole[1], later[1])
    assert not np.array_equal(whole[1], other[1])


def test_each_sample_has_something_to_predict_and_no_end_is_chosen() -> None:
    tokens = np.tile(np.array([7, 1, 7, 7]), (500, 1))
    _, labels = mask(tokens, np.arange(500), **RULE | {"end": 7})
    assert (labels[:, 1] == 1).all()
    assert (labels[:, [0, 2, 3]] == IGNORED).all()
