"""Token masking for masked language models: BERT's rule, computed from seed and position alone."""

import numpy as np

from trainer.data.counter_rng import IntArray, random_bits, uniform
from trainyard.config.training.models import IGNORED

_MASKING = 16  # purpose of the random bits: other purposes have other numbers
_MASKED_BELOW, _RANDOM_BELOW = 0.8, 0.9  # of the selected tokens: 80 % masked, 10 % random, 10 % unchanged


def mask_tokens(
    tokens: IntArray, positions: IntArray, *, seed: int, probability: float, mask: int, vocabulary: int, end: int | None
) -> tuple[IntArray, IntArray]:
    """Return inputs and labels, both (samples, length) as `tokens`, of the samples at these positions of the order.

    The rule is Devlin et al., "BERT", 2019, appendix A.1. As in BERT's code, the share `probability` of each sample's
    tokens is selected, at least one token. Each sample has the same number of selected tokens, so that the mean over
    micro-batches is the mean over all samples, and the loss of a step does not depend on how its batch is split. Tokens
    that end documents (`end`) are never selected.
    """
    columns = np.arange(tokens.shape[1])
    rows = positions[:, None]
    score = uniform(random_bits(seed, _MASKING, rows, columns, 0))
    if end is not None:
        score[tokens == end] = 1.0
    count = max(1, round(probability * tokens.shape[1]))
    selected = (score <= np.partition(score, count - 1)[:, count - 1 : count]) & (score < 1.0)
    action = uniform(random_bits(seed, _MASKING, rows, columns, 1))
    random_tokens = (uniform(random_bits(seed, _MASKING, rows, columns, 2)) * vocabulary).astype(np.int64)
    inputs = np.where(action < _MASKED_BELOW, mask, np.where(action < _RANDOM_BELOW, random_tokens, tokens))
    return np.where(selected, inputs, tokens), np.where(selected, tokens, IGNORED)
