"""Benchmark of the connections between agents and controller, at small sizes."""

from benchmarks.control_plane import measure


def test_cost_of_each_size_is_measured() -> None:
    results = measure((2, 4), 0.5)
    assert [each["nodes"] for each in results["sizes"]] == [2, 4]
    assert all(each["memory_mib"] > 0 and each["publish_ms"] > 0 for each in results["sizes"])
