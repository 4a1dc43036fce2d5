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

from kernelproof.errors import UsageError
from kernelproof.store import Suites
from kernelproof.suite import runs
from kernelproof.types import SuiteResult

STORE_BYTES = 80_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        from ray import cluster_utils as utils
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("CI has no Ray: install the extra `ray`")
        pytest.skip("the extra `ray` is not installed")
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


def test_builds_travel_and_what_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one machine's cache to another's, both made up."""
    from kernelproof.suite import ray_engine

    class Ray:
        def get(self, reference: Any) -> Any:
            if isinstance(reference, Exception):
                raise reference
            return reference

    monkeypatch.setattr(ray_engine, "_ray", Ray)
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "one"))
    places = {"builds/old": "a", "candidates/c/builds/new": "b", "builds/both": "c"}
    for name, text in places.items():
        folder = tmp_path / "one" / name
        folder.mkdir(parents=True)
        (folder / "k.so").write_text(text)
    (tmp_path / "one" / "builds" / "k.lock").touch()
    names = {"builds/old", "candidates/c/builds/new", "builds/both"}
    assert ray_engine._builds() == names
    names = names - {"builds/old"}
    packed = ray_engine._packed(names)
    assert ray_engine._packed(set()) == b""
    monkeypatch.setattr(ray_engine, "_MOST_BUILD_BYTES", 1)
    assert ray_engine._packed(names) == b""

    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "two"))
    own = tmp_path / "two" / "builds" / "both" / "k.so"
    own.parent.mkdir(parents=True)
    own.write_text("its own")
    for reference in (packed, None, RuntimeError("its machine is gone")):
        ray_engine._take_builds([reference])
    assert ray_engine._builds() == names
    assert own.read_text() == "its own"
    assert (tmp_path / "two" / "candidates/c/builds/new/k.so").read_text() == "b"
    assert not list((tmp_path / "two").glob(".taken-*"))


def test_files_are_fetched_once_and_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelproof.suite import ray_engine

    fetched: list[str] = []

    class Ray:
        def get(self, reference: str) -> dict[str, bytes]:
            fetched.append(reference)
            return {"kernel/candidate.py": b"x = 1\n", "kernel/csrc/k.cu": b"//"}

    monkeypatch.setattr(ray_engine, "_ray", Ray)
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    for _ in range(2):
        folder = ray_engine._placed("abc", "kernel", ["reference"])
    assert folder.name == "kernel" and fetched == ["reference"]
    assert (folder / "candidate.py").read_text() == "x = 1\n"
    assert (folder / "csrc" / "k.cu").is_file()
    assert [p.name for p in folder.parent.parent.iterdir()] == ["abc"]


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    means, store = runs.Means(workers="ray"), f"sqlite:///{tmp_path / 's'}"
    with pytest.raises(UsageError, match=r"pip install 'kernelproof\[ray\]'"):
        runs.start(*thirty.write(tmp_path), means=means, store=store)
    assert Suites(store).latest(1) == []
