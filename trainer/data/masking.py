"""Which tokens a masked language model is to predict: BERT's rule, drawn from (seed, position) alone."""

import numpy as np

from trainer.data.draws import Counts, keyed, uniform
from trainyard.config.training.models import IGNORED

_MASKING = 16  # what a key is for
_TO_MASK, _TO_RANDOM = 0.8, 0.9  # of the chosen: 80 % the mask, 10 % a random token, 10 % left as they are


def mask(
    tokens: Counts, positions: Counts, *, seed: int, probability: float, mask: int, vocabulary: int, end: int | None
) -> tuple[Counts, Counts]:
    """Inputs and labels, both (samples, length) as `tokens`, of the samples at these positions of the order.

    The rule is Devlin et al., "BERT", 2019, appendix A.1. As in its program, the share `probability` of each sample's
    tokens is chosen, one at least: as many in each, so that the mean over micro-batches is the mean over all samples,
    and a step's loss does not depend on how its batch is split. Ends of documents are never chosen.
    """
    columns = np.arange(tokens.shape[1])
    of_sample = positions[:, None]
    chance = uniform(keyed(seed, _MASKING, of_sample, columns, 0))
    if end is not None:
        chance[tokens == end] = 1.0
    number = max(1, round(probability * tokens.shape[1]))
    chosen = (chance <= np.partition(chance, number - 1)[:, number - 1 : number]) & (chance < 1.0)
    kind = uniform(keyed(seed, _MASKING, of_sample, columns, 1))
    other = (uniform(keyed(seed, _MASKING, of_sample, columns, 2)) * vocabulary).astype(np.int64)
    inputs = np.where(kind < _TO_MASK, mask, np.where(kind < _TO_RANDOM, other, tokens))
    return np.where(chosen, inputs, tokens), np.where(chosen, tokens, IGNORED)
