"""Workers on a Ray cluster: an actor for each GPU, on whatever machine it is.

Ray decides where an actor lives and that no two have one GPU. The actor runs the same judging
process as `local` does. Problems and candidates travel by content hash, each once to a machine; so
do builds that one machine has made and another will need. A machine that goes away costs its item
another attempt; one that comes is used. Every machine needs kernelproof of the driver's version.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kernelproof
from kernelproof.errors import KernelproofError, UsageError
from kernelproof.home import home
from kernelproof.suite.engine import Gone
from kernelproof.suite.judging import Late, Lost
from kernelproof.suite.local import NICE, VISIBLE, Rules, Worker
from kernelproof.suite.model import Item, files_of

_LOOK_PERIOD = 1.0  # seconds between looks at the cluster
_START_SECONDS = 180.0  # in which an actor starts, where there is room for it
_MOST_BUILD_BYTES = 256 << 20
_COMPILE_SHARE = 4
_MOST_COMPILING = 16
_MISSING = "Ray is missing here: pip install 'kernelproof[ray]'"
# What an actor's process may raise, by name: errors travel as words.
_ERRORS: dict[str, type[Exception]] = {
    "Late": Late, "Lost": Lost, "UsageError": UsageError, "KernelproofError": KernelproofError,
}  # fmt: skip

Parcel = dict[str, Any]


class Cluster:
    """The workers of a Ray cluster; see `engine.Crew`.

    Args:
        address: of the cluster; None for ``$RAY_ADDRESS``, and where that is not set one is started
            on this machine.
        jobs: how many candidates are compiled at a time, on processors of the cluster; None for a
            quarter of them.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """

    patience = 120.0

    def __init__(self, rules: Rules, address: str | None, jobs: int | None) -> None:
        self._ray = _ray()
        self._rules = rules
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(address)
        # What an actor occupies: a GPU, or on the CPU one processor.
        self._kind = "CPU" if rules.options.get("device") == "cpu" else "GPU"
        self._starting: list[tuple[Any, Any, float]] = []
        self._living: set[_Actor] = set()
        self._refs: dict[str, Any] = {}
        self._builds: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._looked = 0.0
        self._capability = ""
        self._known = threading.Event()
        processors = int(self._ray.cluster_resources().get("CPU", 0))
        usual = min(_MOST_COMPILING, processors // _COMPILE_SHARE)
        self.builders = 0 if self._kind == "CPU" else usual if jobs is None else jobs

    def slots(self) -> Sequence[_Actor]:
        now = time.monotonic()
        if now - self._looked > _LOOK_PERIOD:
            self._looked = now
            self._start_missing(now)
        return self._started(now)

    def build(self, item: Item) -> None:
        # For which GPU is known once a worker has started.
        self._known.wait()
        if self._capability:
            task = self._ray.remote(_build).options(num_cpus=1, num_returns=2, max_retries=0)
            answer, made = task.remote(self.parcel(item), self._rules, self._capability)
            if self._ray.get(answer).get("built"):
                self.keep_builds(item, made)

    def close(self) -> None:
        self._known.set()
        for actor, _, _ in self._starting:
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def parcel(self, item: Item) -> Parcel:
        """The files of an item as references, and the builds that are known of its candidate."""
        assert item.candidate is not None
        problem, candidate = self._shipped(item.problem), self._shipped(item.candidate)
        with self._lock:
            made = self._builds.get(candidate[0])
        # In a list, so that they are fetched only where they are not yet.
        return {"problem": problem, "candidate": candidate, "item": item, "builds": [made]}

    def keep_builds(self, item: Item, made: Any) -> None:
        """``made``: what another machine needs, so as not to build this candidate again."""
        assert item.candidate is not None
        key = self._shipped(item.candidate)[0]
        with self._lock:
            self._builds[key] = made

    def left(self, actor: _Actor) -> None:
        """One worker fewer."""
        with self._lock:
            self._living.discard(actor)

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None and not os.environ.get("RAY_ADDRESS"):
            how["include_dashboard"] = False
        try:
            self._ray.init(address=address, **how)
        except (ConnectionError, ValueError, RuntimeError) as error:
            text = str(error).splitlines()[0]
            raise UsageError(f"no Ray cluster at {address or 'RAY_ADDRESS'}: {text}") from error

    def _start_missing(self, now: float) -> None:
        room = int(self._ray.cluster_resources().get(self._kind, 0))
        with self._lock:
            there = len(self._living) + len(self._starting)
        for _ in range(room - there):
            needs = {"num_gpus": 1, "num_cpus": 0} if self._kind == "GPU" else {"num_cpus": 1}
            kind = self._ray.remote(_Host).options(max_restarts=0, **needs)
            actor = kind.remote(self._rules)
            self._starting.append((actor, actor.about.remote(), now))

    def _started(self, now: float) -> list[_Actor]:
        found, waiting = [], []
        for actor, about, since in self._starting:
            ready, _ = self._ray.wait([about], timeout=0)
            if ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    found.append(self._joined(actor, self._ray.get(about)))
            elif now - since < _START_SECONDS:
                waiting.append((actor, about, since))
            else:
                # The machine that it was meant for is gone.
                self._ray.kill(actor)
        self._starting = waiting
        return found

    def _joined(self, actor: Any, about: Mapping[str, str]) -> _Actor:
        if about["version"] != kernelproof.__version__:
            raise UsageError(
                f"{about['place']} has kernelproof {about['version']}, and this machine "
                f"{kernelproof.__version__}: a run needs one version on all"
            )
        if not self._capability:
            self._capability = about["capability"]
        self._known.set()
        joined = _Actor(self._ray, self, actor, about["place"])
        with self._lock:
            self._living.add(joined)
        return joined

    def _shipped(self, path: Path) -> tuple[str, str, list[Any]]:
        """(content hash, its entry's name, reference) of a file or folder."""
        files = files_of(path)
        total = hashlib.sha256(f"{path.name}\0{path.is_dir()}".encode())
        for name in sorted(files):
            total.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
        key = total.hexdigest()[:32]
        with self._lock:
            if key not in self._refs:
                inside = f"{path.name}/" if path.is_dir() else ""
                self._refs[key] = self._ray.put({f"{inside}{n}": c for n, c in files.items()})
            return key, path.name, [self._refs[key]]


class _Actor:
    """The driver's handle on a worker of the cluster; see `engine.Slot`."""

    def __init__(self, ray: Any, cluster: Cluster, actor: Any, name: str) -> None:
        self.name = name
        self._ray = ray
        self._cluster = cluster
        self._actor = actor

    def judge(self, item: Item) -> dict[str, Any]:
        try:
            call = self._actor.judge.options(num_returns=2)
            answer, made = call.remote(self._cluster.parcel(item))
            found: dict[str, Any] = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            raise Gone(f"{self.name}: {str(error).splitlines()[0]}") from error
        if found.pop("built", False):
            self._cluster.keep_builds(item, made)
        if "error" in found:
            raise _ERRORS[found["error"]](found["text"])
        return found

    def close(self) -> None:
        self._cluster.left(self)
        with contextlib.suppress(Exception):
            # It may be gone already, or Ray with it.
            self._ray.kill(self._actor)


class _Host:
    """What runs in an actor."""

    def __init__(self, rules: Rules) -> None:
        gpus = os.environ.get(VISIBLE, "")
        self.rules = rules
        self.worker = Worker("", rules, environment={VISIBLE: gpus})

    def about(self) -> dict[str, str]:
        ray = _ray()
        device = self.worker.carry_out("device", None)
        node = ray.util.get_node_ip_address()
        number = ",".join(map(str, ray.get_gpu_ids())) or "none"
        node_id = ray.get_runtime_context().get_node_id()[:6]
        return {
            "version": kernelproof.__version__,
            "place": f"{node} ({node_id}) gpu {number}",
            "capability": device["capability"],
        }

    def judge(self, parcel: Parcel) -> tuple[dict[str, Any], bytes]:
        """Two returns to Ray: the answer, and builds, which the driver only passes on."""
        return _carried_out("judge", parcel, self.worker, self.rules, "")


def _build(parcel: Parcel, rules: Rules, capability: str) -> tuple[dict[str, Any], bytes]:
    """A task: build a candidate ahead, for a GPU of ``capability``."""
    worker = Worker("builder", rules, environment={VISIBLE: ""}, nice=NICE)
    try:
        return _carried_out("build", parcel, worker, rules, capability)
    finally:
        worker.close()


def _carried_out(
    do: str, parcel: Parcel, worker: Worker, rules: Rules, capability: str
) -> tuple[dict[str, Any], bytes]:
    """The answer of a judging process or its error in words, and the builds that were made."""
    problem, candidate = (_placed(*parcel[part]) for part in ("problem", "candidate"))
    _take_builds(parcel["builds"])
    before = _builds()
    order = rules.order(parcel["item"], str(problem), str(candidate), capability)
    try:
        answer = dict(worker.carry_out(do, order))
    except (Late, Lost, KernelproofError) as error:
        name = next(n for n, kind in _ERRORS.items() if isinstance(error, kind))
        answer = {"error": name, "text": str(error)}
    packed = _packed(_builds() - before)
    answer["built"] = bool(packed)
    return answer, packed


def _placed(key: str, name: str, reference: list[Any]) -> Path:
    """Where the files with this hash are on this machine; fetched where they are not yet."""
    folder = home() / "suites" / "shipped" / key
    if not folder.is_dir():
        files = _ray().get(reference[0])
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent))
        for path, content in files.items():
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        with contextlib.suppress(OSError):
            # Another worker of this machine may have been first.
            temporary.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
    return folder / name


def _builds() -> set[str]:
    """The finished builds of this machine, by their places in the data folder."""
    data = home()
    found = [*data.glob("builds/*"), *data.glob("candidates/*/builds/*")]
    return {str(p.relative_to(data)) for p in found if p.is_dir() and not p.name.startswith(".")}


def _packed(names: set[str]) -> bytes:
    """Builds as a tar; empty where there are none, or too much of them to send around."""
    data = home()
    folders = [data / name for name in sorted(names)]
    size = sum(p.stat().st_size for folder in folders for p in folder.rglob("*") if p.is_file())
    if not folders or size > _MOST_BUILD_BYTES:
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in folders:
            tar.add(folder, arcname=str(folder.relative_to(data)))
    return buffer.getvalue()


def _take_builds(reference: list[Any]) -> None:
    """Unpack builds that another machine has made, where they are not here."""
    if reference[0] is None:
        return
    try:
        packed = _ray().get(reference[0])
    except Exception:
        # Its machine is gone, and they with it: they are built again.
        return
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        temporary = Path(tempfile.mkdtemp(prefix=".taken-", dir=home()))
        tar.extractall(temporary, filter="data")
    for folder in [*temporary.glob("builds/*"), *temporary.glob("candidates/*/builds/*")]:
        place = home() / folder.relative_to(temporary)
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            # One that is there stays.
            folder.rename(place)
    shutil.rmtree(temporary, ignore_errors=True)


def require() -> None:
    """Raises UsageError where Ray is not installed."""
    _ray()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError(_MISSING) from None
    return ray
