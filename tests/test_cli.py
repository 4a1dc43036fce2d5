"""The command line's contracts, in fresh processes: exit codes, JSON, what goes where."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

HONEST = "tests/candidates/right/rms_norm__norm_of_row.py"
KEY_GATE = "tests/candidates/wrong/gated_recurrence__key_gate.py"
NO_GPU = "tests/candidates/wrong/gated_recurrence__cuda_directed_fma"


def test_a_pass_is_exit_0_and_says_so(run_cli) -> None:
    done = run_cli("check", "rms_norm", HONEST, "--seeds", "1", "--case", "odd")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pass: rms_norm__norm_of_row computes the same function")
    assert "proof yes" in done.stdout and "compat yes" in done.stdout
    assert "effective bits" in done.stdout and "max_abs" in done.stdout


def test_json_is_one_object_on_stdout_and_nothing_else(run_cli) -> None:
    done = run_cli("check", "rms_norm", HONEST, "--seeds", "1", "--case", "odd", "--json")
    body = json.loads(done.stdout)
    assert body["status"] == "pass"
    assert {c["name"] for c in body["checks"]} >= {"inputs unchanged", "outputs are new"}
    assert "check odd" in done.stderr


def test_levels_differ_in_what_they_run(run_cli) -> None:
    cases = {}
    for level in ("--quick", "--thorough"):
        done = run_cli("check", "rms_norm", HONEST, "--case", "odd", level, "--json")
        runs = json.loads(done.stdout)["verdict"]["runs"]
        assert all(run["status"] == "pass" for run in runs)
        cases[level] = [(run["variant"]["family"], run["variant"]["layout"]) for run in runs]
    assert cases["--quick"] == [("", "")]
    assert {("large", ""), ("", "offset"), ("tiny", "gap")} <= set(cases["--thorough"])


def test_a_wrong_kernel_is_exit_1_with_a_message_that_helps(run_cli) -> None:
    done = run_cli("check", "gated_recurrence", KEY_GATE, "--json")
    assert done.returncode == 1
    body = json.loads(done.stdout)
    assert body["status"] == "wrong"
    assert "the gate acts on the key axis" in body["verdict"]["message"]


def test_code_for_a_gpu_is_unsupported_without_one(run_cli) -> None:
    done = run_cli("check", "gated_recurrence", NO_GPU, "--device", "cpu", "--json")
    assert done.returncode == 1
    body = json.loads(done.stdout)
    assert body["status"] == "unsupported"
    assert "only .rn is emulated for fma.f64" in body["verdict"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "no_such_problem", HONEST], "no problem 'no_such_problem': neither a file nor"),
        (["check", "rms_norm", "no_such_candidate.py"], "no candidate 'no_such_candidate.py'"),
        (["check", "rms_norm", HONEST, "--case", "nothing"], "has no case 'nothing'; it has"),
        (["bench", "rms_norm", HONEST, "--case", "nothing"], "has no case 'nothing'; it has"),
        (["check", "rms_nrm", HONEST], "no problem 'rms_nrm' (did you mean 'rms_norm'?)"),
        (["check", "rms_norm", HONEST, "--case", "od"], "no case 'od' (did you mean 'odd'?)"),
        (["check", "rms_norm", HONEST, "--timeout", "inf"], "less than or equal to 1000000"),
        (["suite", "run", "problems", "reference", "--limit", "nan"], "'--limit'"),
        (["check", "rms_norm", HONEST, "--store", "here"], "--store 'here' is no URL"),
        (["board", "--store", "sqlite:////no/such/x.sqlite"], "there is no folder /no/such"),
        (["session", "start", "rms_norm", "--time", "inf"], "'--time'"),
        (["mcp", "--transport", "http", "--port", "99999"], "less than or equal to 65535"),
        (["check", "rms_norm", HONEST, "--device", "tpu"], "no device 'tpu'; there are cpu, cuda"),
        (["check", "rms_norm", HONEST, "--size", "a"], "is not NAME=VALUE"),
        (["check", "rms_norm", HONEST, "--quick", "--thorough"], "exclude each other"),
        (
            ["bench", "rms_norm", HONEST, "--case", "odd", "--baseline", "x"],
            "has no baseline 'x' on a CPU; --baseline takes 'eager',",
        ),
        (["report", "no_such_file.json"], "cannot read no_such_file.json"),
        (["check", "rms_norm", HONEST, "--no-such-option"], "No such option"),
        (["check", "LICENSE", HONEST], "LICENSE"),
    ],
)
def test_usage_is_exit_2_and_names_the_value(run_cli, arguments, words: str) -> None:
    done = run_cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


def test_a_reference_that_fails_is_the_problems_fault(run_cli, tmp_path: Path) -> None:
    problem = tmp_path / "broken.py"
    problem.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x): raise RuntimeError('broken here')\n"
        "def get_inputs(): return [torch.ones(2)]\n"
    )
    done = run_cli("check", str(problem), HONEST)
    assert done.returncode == 2
    assert (
        "the reference of broken fails on case 'default': RuntimeError: broken here" in done.stderr
    )


def test_bench_times_what_passed_and_report_shows_it(run_cli, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'r.sqlite'}"
    done = run_cli(
        "bench", "rms_norm", HONEST, "--baseline", "eager", "--rounds", "7", "--seconds", "0.5",
        "--seeds", "1", "--json", "--store", store,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    timing = json.loads(done.stdout)["timing"]
    assert [b["name"] for b in timing["baselines"]] == ["eager"]
    assert timing["ratios"][0]["answer"] in ("FASTER", "SAME", "SLOWER", "UNCLEAR")
    assert len(timing["candidate"]["host"]["samples"]) >= 7
    assert timing["floor"]["host"]["median"] > 0
    record = tmp_path / "record.json"
    record.write_text(done.stdout)
    for source in ([], [str(record)]):
        page = tmp_path / "page.html"
        shown = run_cli("report", *source, "-o", str(page), "--store", store)
        assert shown.returncode == 0, shown.stderr
        assert "rms_norm" in shown.stdout and "rms_norm__norm_of_row" in page.read_text()
        page.unlink()


def test_bench_does_not_time_what_failed(run_cli) -> None:
    done = run_cli("bench", "gated_recurrence", KEY_GATE, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["timing"] is None


def test_an_empty_store_says_what_to_do(run_cli, tmp_path: Path) -> None:
    done = run_cli("report", "--store", f"sqlite:///{tmp_path / 'empty.sqlite'}")
    assert done.returncode == 2 and "run `kernelproof check`" in done.stderr


def test_a_table_in_a_file_has_its_names_in_full(monkeypatch) -> None:
    from test_store import numbered

    from kernelproof import commands
    from kernelproof.report import units

    one, name = numbered(1), "gated_recurrence__a_design_of_ours"
    one = one.model_copy(
        update={
            "candidate": one.candidate.model_copy(update={"name": name}),
            "problem": one.problem.model_copy(update={"name": "int8_attention_with_a_page_table"}),
        }
    )
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in commands.summary([one])
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, commands.summary([one]).splitlines())) <= units.WIDTH


def test_doctor_answers(run_cli) -> None:
    done = run_cli("doctor", "--json")
    assert done.returncode == 0
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
    assert facts["torch"]["state"] == "ok"
    assert all(fact["remedy"] for fact in facts.values() if fact["state"] == "missing")
    assert "mla_kv" in facts["problems"]["value"]
    assert facts["confined resources"]["value"].endswith("files of 8.6 GB")
    assert {"confined network", "confined files"} <= set(facts)


def test_doctor_answers_without_a_data_folder(run_cli, monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "file"))
    done = run_cli("doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
    assert facts["data folder"]["state"] == "missing"
    assert "KERNELPROOF_HOME" in facts["data folder"]["remedy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "nosuch", "x"), "no problem 'nosuch'"),
        (("check", "rms_norm", HONEST, "--nosuch"), "No such option: --nosuch"),
        (("check", "rms_norm", HONEST, "--timeout", "-4"), "'--timeout'"),
        (("bench", "rms_norm", HONEST, "--rounds=-3"), "(given: '-3')"),
        (("session", "log", "nosuch"), "no session begins with 'nosuch'"),
        (("inspect", "mla_kv/cuda", "--gpu", "nosuch"), "nosuch"),
        (
            ("check", "rms_norm", HONEST, "--device", "cpu:7"),
            "there are cpu, cuda and cuda:<index>",
        ),
    ],
)
def test_a_usage_error_is_an_object_too(run_cli, words: tuple[str, ...], said: str) -> None:
    done = run_cli(*words, "--json")
    assert done.returncode == 2
    body = json.loads(done.stdout)
    assert body["status"] == "usage" and body["exit_code"] == 2 and said in body["message"]
    assert body["message"].splitlines()[0] in done.stderr


def test_a_problem_that_prints_does_not_print_into_the_json(run_cli, tmp_path: Path) -> None:
    problem, candidate = tmp_path / "twice.py", tmp_path / "mine.py"
    body = "import torch\nclass Model{}(torch.nn.Module):\n    def forward(self, x): return 2 * x\n"
    problem.write_text(
        "print('hello')\n" + body.format("") + "def get_inputs():\n    print('drawn')\n"
        "    return [torch.randn(8)]\n"
    )
    candidate.write_text(body.format("New"))
    done = run_cli("check", str(problem), str(candidate), "--quick", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "pass", done.stderr
    assert "hello" in done.stderr and "drawn" in done.stderr


def test_a_verdict_is_not_lost_where_the_store_takes_none(run_cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_text("no database" * 100)
    arguments = ("check", "rms_norm", HONEST, "--quick", "--case", "odd", "--store")
    done = run_cli(*arguments, f"sqlite:///{broken}", "--json")
    assert done.returncode == 2 and "is not in the store" in done.stderr
    assert "KERNELPROOF_STORE names another" in done.stderr and "Background" not in done.stderr
    assert json.loads(done.stdout)["status"] == "pass"


def test_a_report_stays_where_the_new_one_cannot_be_written(tmp_path: Path, monkeypatch) -> None:
    from kernelproof import outfile
    from kernelproof.errors import UsageError

    page = tmp_path / "report.html"
    outfile.write(page, "old")
    monkeypatch.setattr(
        Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(UsageError, match="full"):
        outfile.write(page, "new")
    assert page.read_text() == "old" and list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("built", ["13.0", None])
def test_doctor_says_what_becomes_of_cuda_kernels_without_a_gpu(monkeypatch, built) -> None:
    import torch

    from kernelproof import doctor

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    (told,) = (fact for fact in doctor._torch_facts() if fact.name == "GPU")
    assert told.state == "missing" and "emulated here" in told.remedy
    assert ("built without CUDA" in told.remedy) == (built is None)


def test_doctor_tells_whether_torch_has_bytecode(monkeypatch, tmp_path: Path) -> None:
    import torch

    from kernelproof import doctor

    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    told = doctor._bytecode()
    assert told.state == "missing" and "compileall" in told.remedy
    kept = Path(importlib.util.cache_from_source(torch.__file__))
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert doctor._bytecode().state == "ok"


def test_the_stages_of_a_command_go_to_stderr_or_a_file(run_cli, monkeypatch, tmp_path) -> None:
    stages = tmp_path / "stages.json"
    monkeypatch.setenv("KERNELPROOF_TIMELINE", str(stages))
    arguments = ("check", "rms_norm", HONEST, "--quick", "--case", "odd", "--json")
    assert json.loads(run_cli(*arguments).stdout)["status"] == "pass"
    rows = {row["stage"]: row for row in json.loads(stages.read_text())}
    whole = rows["the whole command"]
    assert {"import torch", "load the problem", "check", "store the record"} <= set(rows)
    assert all(row["began"] + row["seconds"] <= whole["seconds"] + 0.1 for row in rows.values())
    assert whole["began"] == 0.0


def test_seeds_are_secret_and_can_be_replayed(run_cli) -> None:
    def seeds(*extra: str) -> list[int]:
        done = run_cli(
            "check", "rms_norm", HONEST, "--case", "odd", "--seeds", "2", "--json", *extra
        )
        return json.loads(done.stdout)["seeds"]

    assert seeds() != seeds()
    assert seeds("--seed", "5") == seeds("--seed", "5")


def test_an_internal_fault_is_exit_3(monkeypatch, capsys) -> None:
    from kernelproof import cli, doctor

    monkeypatch.setattr(doctor, "examine", lambda: 1 / 0)
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor"])
    assert caught.value.code == 3
    assert "internal error" in capsys.readouterr().err


def test_version(run_cli) -> None:
    done = run_cli("--version")
    assert done.returncode == 0 and done.stdout.startswith("kernelproof ")


def test_training_mode_is_another_function(run_cli, tmp_path: Path) -> None:
    problem = tmp_path / "norm.py"
    problem.write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(4, affine=False)\n"
        "    def forward(self, x):\n        return self.norm(x)\n"
        "def get_inputs():\n    return [torch.randn(9, 4)]\n"
    )
    candidate = tmp_path / "mine.py"
    candidate.write_text(
        "import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n"
        "    def forward(self, x):\n        y = x - x.mean(0)\n"
        "        return y / (y.square().mean(0) + 1e-5).sqrt()\n"
    )
    files = (str(problem), str(candidate), "--quick", "--json", "--seed", "3")
    plain, training = run_cli("check", *files), run_cli("check", *files, "--training")
    assert json.loads(plain.stdout)["status"] == "wrong"
    body = json.loads(training.stdout)
    assert body["status"] == "pass", body["verdict"]["message"]
    assert body["problem"]["training"] is True


def test_tools_of_a_gpu_are_refused_on_a_cpu(run_cli) -> None:
    done = run_cli("bench", "rms_norm", HONEST, "--device", "cpu", "--sanitize")
    assert done.returncode == 2
    assert "--sanitize watches kernels on an NVIDIA GPU" in done.stderr


@pytest.mark.parametrize("place", ["no_folder/x", "."])
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rms_norm", HONEST, "--repro"],
        ["prove", "rms_norm", HONEST, "-o"],
        ["demo", "-o"],
        ["report", "-o"],
    ],
)
def test_a_file_that_cannot_be_written_is_known_before_the_work(
    run_cli, tmp_path: Path, arguments, place: str
) -> None:
    done = run_cli(*arguments, str(tmp_path / place))
    assert done.returncode == 2, done.stderr
    assert f"cannot write {tmp_path / place}: " in done.stderr
    assert "check odd" not in done.stderr and "Traceback" not in done.stderr


def test_a_data_folder_that_cannot_be_is_named(run_cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = str(tmp_path / "file" / "data")
    done = run_cli("check", "rms_norm", HONEST, "--quick", env={"KERNELPROOF_HOME": home})
    assert done.returncode == 2, done.stderr
    assert f"cannot make the data folder {home}" in done.stderr
    assert "KERNELPROOF_HOME names another" in done.stderr and "Traceback" not in done.stderr


def test_problem_and_candidate_are_two_files(run_cli, tmp_path: Path) -> None:
    both = tmp_path / "both.py"
    both.write_text(Path("problems/cumsum.py").read_text() + "\nModelNew = Model\n")
    done = run_cli("check", str(both), str(both))
    assert done.returncode == 2
    assert "put class ModelNew into a file of its own" in done.stderr
