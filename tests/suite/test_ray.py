"""A suite on a Ray cluster of two nodes with a GPU each, which are made up: what is judged is the
same as on local workers, also when a node is killed in the middle."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import thirty

from kernelproof.suite import runs
from kernelproof.types import SuiteResult

STORE_BYTES = 80_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    utils = pytest.importorskip("ray.cluster_utils", reason="the extra `ray` is not installed")
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    made = utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def test_thirty_candidates_and_a_node_that_dies(cluster: Any, tmp_path: Path) -> None:
    nodes = [
        cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE_BYTES) for _ in range(2)
    ]
    places: set[str] = set()
    killed = threading.Event()

    def told(result: SuiteResult, done: int, count: int) -> None:
        places.add(result.place)
        if len(places) == 2 and done >= 6 and not killed.is_set():
            killed.set()
            cluster.remove_node(nodes[1], allow_graceful=False)

    means = runs.Means(workers="ray", address=cluster.address)
    state = runs.start(
        *thirty.write(tmp_path), timed=False, options=thirty.OPTIONS, means=means, told=told,
        store=f"sqlite:///{tmp_path / 's.sqlite'}",
    )  # fmt: skip
    assert killed.is_set()
    assert {r.item: r.status for r in state.results} == thirty.expected()
    assert state.left == 0
    # What was under way on the node was judged again on the other.
    assert max(r.attempts for r in state.results) >= 2
