"""Do proofs verify on other machines than those that made them, and are edits noticed?

    python benchmarks/proofs.py -o FILE [--gpu-of-maker UUID] PROOF.json ...

verifies each proof here, with its own and with fresh seeds, and adds a row to FILE: where it was
made, where it was verified, the answer, and of how many copies with one changed byte the change was
noticed. A row of the same proof and machine is replaced. ``--gpu-of-maker`` (as nvidia-smi -L has
it) tells whether the GPU here is another one of the same kind.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelproof import proof_file, proving

_FLIPS = 300
_SEED = 1


def noticed(path: Path, count: int) -> int:
    """Of how many copies with one bit changed the file is not as it was written."""
    whole, draw = path.read_bytes(), random.Random(_SEED)
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for _ in range(count):
            at = draw.randrange(len(whole))
            changed = whole[at] ^ (1 << draw.randrange(8))
            copy.write_bytes(whole[:at] + bytes([changed]) + whole[at + 1 :])
            read = proof_file.read(copy)
            found += bool(read.edited)
    return found


def other_gpu(maker: str) -> bool | None:
    """Whether the GPU here is another one than ``maker``; None where that cannot be told."""
    import torch

    if not maker or not torch.cuda.is_available():
        return None
    here = str(torch.cuda.get_device_properties(0).uuid)
    return here.removeprefix("GPU-") != maker.removeprefix("GPU-")


def verified(path: Path, maker: str) -> dict[str, Any]:
    """A row of the results."""
    found = proving.verify(path)
    proof = proof_file.read(path).proof
    assert proof is not None and found.made is not None and found.here is not None, found.reasons
    made, here = (json.loads(one.model_dump_json()) for one in (found.made, found.here))
    device = proof.record.verdict.device
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "problem": proof.problem.name, "candidate": proof.candidate.name,
        "language": proof.record.candidate.language, "device": device, "sha256": found.sha256,
        "made": made, "here": here, "other_gpu": other_gpu(maker) if device != "cpu" else None,
        "answer": found.answer, "reasons": found.reasons, "verified": found.verified,
        "no_times": found.no_times, "notes": found.notes,
        "flipped": _FLIPS, "noticed": noticed(path, _FLIPS),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--gpu-of-maker", default="")
    parser.add_argument("proofs", type=Path, nargs="+")
    given = parser.parse_args()
    rows = json.loads(given.output.read_text()) if given.output.is_file() else []
    for path in given.proofs:
        row = verified(path, given.gpu_of_maker)
        key = row["sha256"], row["here"]["cpu"], row["here"]["gpu"]
        rows = [r for r in rows if (r["sha256"], r["here"]["cpu"], r["here"]["gpu"]) != key]
        rows.append(row)
        given.output.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{path.name}: {row['answer']}, {row['noticed']} of {row['flipped']} edits noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
