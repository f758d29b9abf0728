"""Token masking by BERT's rule."""

from typing import Any

import numpy as np

from trainer.data.masking import mask_tokens
from trainyard.config.training.models import IGNORED

RULE: dict[str, Any] = {"seed": 5, "probability": 0.15, "mask": 999, "vocabulary": 1000, "end": None}


def test_shares_of_masked_random_and_unchanged_tokens_are_as_in_bert() -> None:
    tokens = np.random.default_rng(0).integers(0, 900, (400, 128))
    inputs, labels = mask_tokens(tokens, np.arange(400), **RULE)
    selected = labels != IGNORED
    assert np.array_equal(labels[selected], tokens[selected])
    assert np.array_equal(inputs[~selected], tokens[~selected])
    assert abs(selected.mean() - 0.15) < 0.01
    masked, unchanged = (inputs == 999)[selected].mean(), (inputs == tokens)[selected].mean()
    assert abs(masked - 0.8) < 0.02
    assert abs(unchanged - 0.1) < 0.02
    random_tokens = inputs[selected & (inputs != 999) & (inputs != tokens)]
    assert abs(random_tokens.mean() - 500) < 30


def test_each_sample_has_the_same_number_of_selected_tokens() -> None:
    _, labels = mask_tokens(np.zeros((50, 128), dtype=np.int64), np.arange(50), **RULE)
    assert set((labels != IGNORED).sum(axis=1)) == {round(0.15 * 128)}


def test_masking_depends_on_seed_and_position_only() -> None:
    tokens = np.arange(8 * 16).reshape(8, 16)
    whole = mask_tokens(tokens, np.arange(8), **RULE)
    part = mask_tokens(tokens[5:6], np.array([5]), **RULE)
    assert all(np.array_equal(batch[5:6], single) for batch, single in zip(whole, part, strict=True))
    later, other = (
        mask_tokens(tokens, np.arange(8) + 8, **RULE),
        mask_tokens(tokens, np.arange(8), **RULE | {"seed": 6}),
    )
    assert not np.array_equal(whole[1], later[1])
    assert not np.array_equal(whole[1], other[1])


def test_each_sample_has_a_selected_token_and_end_tokens_are_never_selected() -> None:
    tokens = np.tile(np.array([7, 1, 7, 7]), (500, 1))
    _, labels = mask_tokens(tokens, np.arange(500), **RULE | {"end": 7})
    assert (labels[:, 1] == 1).all()
    assert (labels[:, [0, 2, 3]] == IGNORED).all()
