"""Draws and permutations as pure functions of a key: no generator, no state, the same in any process."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
_ROUNDS = 6
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: splitmix64's step


def mix(x: Words) -> Words:
    """splitmix64's finalizer (Steele, Lea, Flood 2014): 64 bits in, 64 well-stirred bits out. At least 1-d."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keyed(seed: int, *parts: int | npt.NDArray[np.integer]) -> Words:
    """64 bits for each tuple of `parts` (numbers of 0 or more, broadcast together; the result is at least 1-d)."""
    key = mix(np.array([seed % 2**64], dtype=np.uint64))
    for part in parts:
        key = mix((key + np.uint64(_GOLDEN)) ^ np.asarray(part).astype(np.uint64))
    return key


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """In [0, 1), from 64 bits each."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permuted(places: Counts, sizes: Counts, keys: Words) -> Counts:
    """Where each place in range(size) stands in the permutation of range(size) that its key names.

    A Feistel network over the next power of four, walked until it lands inside (Black and Rogaway, "Ciphers with
    Arbitrary Finite Domains", 2002). The three arrays have one length; places of one permutation have one
    size and one key.
    """
    found = places.astype(np.uint64)
    ends = sizes.astype(np.uint64)
    # frexp's exponent is the bit length: exact for sizes below 2**53.
    half = np.maximum(1, (np.frexp((sizes - 1).astype(np.float64))[1] + 1) // 2).astype(np.uint64)
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = [mix(keys + np.uint64((turn + 1) * _GOLDEN % 2**64)) for turn in range(_ROUNDS)]
    outside = np.arange(len(found))
    while len(outside):
        walked, its_half, its_mask = found[outside], half[outside], mask[outside]
        left, right = walked >> its_half, walked & its_mask
        for key in rounds:
            left, right = right, left ^ (mix(right + key[outside]) & its_mask)
        found[outside] = walked = (left << its_half) | right
        outside = outside[walked >= ends[outside]]
    return found.astype(np.int64)
