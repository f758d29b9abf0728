"""Counter-based random numbers and permutations: pure functions of a key, without state, the same in any process.

Key and counters are arrays: one call serves many samples. numpy.random.Philox is counter-based too, and needs one
generator object per key.
"""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
_FEISTEL_ROUNDS = 6
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: the increment of splitmix64


def splitmix64(x: Bits) -> Bits:
    """Return the splitmix64 finalizer (Steele, Lea, Flood 2014) of 64-bit values. `x` is at least 1-d."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_bits(seed: int, *counters: int | npt.NDArray[np.integer]) -> Bits:
    """Return 64 random bits for each tuple of `counters`.

    Counters are integers of 0 or more that are broadcast together. The result is at least 1-d.
    """
    key = splitmix64(np.array([seed % 2**64], dtype=np.uint64))
    for counter in counters:
        key = splitmix64((key + np.uint64(_GOLDEN_RATIO)) ^ np.asarray(counter).astype(np.uint64))
    return key


def uniform(bits: Bits) -> npt.NDArray[np.float64]:
    """Convert 64 random bits each to uniform values in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(positions: IntArray, sizes: IntArray, keys: Bits) -> IntArray:
    """Return the image of each position in the permutation of range(size) that its key selects.

    It is a Feistel network over the next power of four, repeated until the result is in the range (cycle walking: Black
    and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The three arrays have one length; positions of the same
    permutation have the same size and key.
    """
    # numpy and torch provide permutations only as arrays (Generator.permutation, randperm): a single sample would need
    # the array of a whole block, for each stream. The Feistel network computes a single sample in constant time and
    # memory, as the contract sample = f(seed, position) requires for any position of a run.
    images = positions.astype(np.uint64)
    ends = sizes.astype(np.uint64)
    # The exponent of frexp is the bit length: exact for sizes below 2**53.
    half_bits = np.maximum(1, (np.frexp((sizes - 1).astype(np.float64))[1] + 1) // 2).astype(np.uint64)
    masks = (np.uint64(1) << half_bits) - np.uint64(1)
    round_keys = [splitmix64(keys + np.uint64((turn + 1) * _GOLDEN_RATIO % 2**64)) for turn in range(_FEISTEL_ROUNDS)]
    outside = np.arange(len(images))
    while len(outside):
        values, half, mask = images[outside], half_bits[outside], masks[outside]
        high, low = values >> half, values & mask
        for key in round_keys:
            high, low = low, high ^ (splitmix64(low + key[outside]) & mask)
        images[outside] = values = (high << half) | low
        outside = outside[values >= ends[outside]]
    return images.astype(np.int64)
