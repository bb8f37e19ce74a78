"""On a Ray cluster, of this machine: the same functions give the same bytes, in the same order."""

import filecmp
import importlib
import json
import socket
import sys
from pathlib import Path

import pytest
from conftest import Command

from saccade import api
from saccade.data import mapping
from saccade.data.tokenizers import Tokenizers
from saccade.distributed import on_ray as module
from saccade.distributed.on_ray import RayMapper, on_ray, spelled_out
from saccade.errors import SaccadeError

FILES = (
    "train/tokens.bin",
    "train/source.bin",
    "train/target.bin",
    "valid/tokens.bin",
    "prepared.json",
    "tokenizer.json",
)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests: coming up takes seconds."""
    ray = importlib.import_module("ray")
    ray.init(num_cpus=2, object_store_memory=2**27, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


class Times:
    """A function that travels."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, task: int) -> int:
        if task == 77:
            raise SaccadeError("77 is refused; take another")
        return self.factor * task


# Pickled by name where workers could not import this file, so by value.
importlib.import_module("ray.cloudpickle").register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def few(monkeypatch):
    """Small blocks and waves, so that there are several."""
    monkeypatch.setattr(mapping, "BLOCK", 60)
    monkeypatch.setattr(module, "FEWEST", 3)


def test_results_come_in_the_order_of_the_tasks_over_several_waves():
    with on_ray("local") as joined:
        assert list(joined.map(Times(3), range(20))) == [3 * task for task in range(20)]


def test_an_address_where_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("ray"), "is_initialized", lambda: False)
    with socket.socket() as bound:  # and listening to nobody
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(SaccadeError, match=rf"--ray={address}: no cluster answers there .*refused.*; start one"):
            on_ray(address).__enter__()


@pytest.mark.parametrize("kind", [ConnectionError, importlib.import_module("ray").exceptions.AuthenticationError])
def test_a_cluster_that_wants_a_token_is_told_from_one_that_is_not_there(kind, monkeypatch) -> None:
    ray = importlib.import_module("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def init(**_: object) -> None:
        raise kind("Failed to connect to Ray cluster")

    monkeypatch.setattr(ray, "init", init)
    remedy = r"--ray=auto: no cluster answers there \(Failed to connect to Ray cluster\); .* RAY_AUTH_MODE=token"
    with pytest.raises(SaccadeError, match=remedy):
        on_ray("auto").__enter__()


def test_what_a_user_can_mend_is_said_as_it_is_here():
    with on_ray("local") as joined, pytest.raises(SaccadeError, match=r"^77 is refused; take another$"):
        list(joined.map(Times(3), range(70, 80)))


def test_a_corpus_prepared_on_ray_is_the_same_to_the_byte(tmp_path: Path, tiny: list[str], few: None) -> None:
    lines = [f"{number} {word}\t{word} {number}\n" for number in range(150) for word in ("one", "two")]
    (tmp_path / "pairs.tsv").write_text("".join([*lines, *lines[:30], "same\tsame\n", "\tempty\n"]))
    arguments = [str(tmp_path / "pairs.tsv"), *tiny]
    api.prepare(*arguments, out=tmp_path / "here", quiet=True)
    api.prepare(*arguments, out=tmp_path / "there", quiet=True, ray="local")
    for name in FILES:
        one, other = (tmp_path / place / "resume" / "data" / name for place in ("here", "there"))
        assert filecmp.cmp(one, other, shallow=False), name
    report = json.loads((tmp_path / "there" / "resume" / "data" / "prepared.json").read_text())["report"]
    assert {reason: found["count"] for reason, found in report["dropped"].items()} == {
        "duplicate": 30,
        "copy": 1,
        "source blank": 1,
    }


def test_training_goes_on_from_what_was_prepared(tmp_path: Path, tiny: list[str], command: Command) -> None:
    out = tmp_path / "run"
    assert command("prepare", *tiny, "--out", out, "--ray").status == 0
    before = (out / "resume" / "data" / "train" / "tokens.bin").stat().st_mtime_ns
    done = command("train", *tiny, "training.max_steps=2", "--out", out)
    assert done.status == 0, done.err
    assert (out / "resume" / "data" / "train" / "tokens.bin").stat().st_mtime_ns == before


def test_a_file_translated_on_ray_is_the_same_to_the_byte_and_gone_on_with(
    tmp_path: Path, trained: Path, command: Command, few: None
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"June {day}, 19{day + 60}\n" for day in range(1, 30)) * 8)
    source = ["-i", str(tmp_path / "in.txt"), "--beam", "1"]
    assert command("translate", trained, *source, "-o", tmp_path / "here").status == 0
    whole = (tmp_path / "here").read_bytes()
    (tmp_path / "there.partial").write_bytes(b"".join(whole.splitlines(keepends=True)[:70]) + b"cut o")
    done = command("translate", trained, *source, "-o", tmp_path / "there", "--resume", "--ray")
    assert done.status == 0, done.err
    assert (tmp_path / "there").read_bytes() == whole


def test_encoding_travels_as_text_and_stays_joint_or_not(trained: Path) -> None:
    tokenizers = Tokenizers.load(trained)
    function, arguments = mapping.Encode(tokenizers).__reduce__()
    assert all(isinstance(argument, str) or argument is None for argument in arguments)
    again = function(*arguments)
    assert again.tokenizers.joint == tokenizers.joint
    pairs = [("June 2", "2. Juni")]
    assert again(pairs) == mapping.Encode(tokenizers)(pairs)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["a.en", "--ray"], ["a.en", "--ray=local"]),
        (["--ray", "10.0.0.1:6379", "a.en"], ["--ray=10.0.0.1:6379", "a.en"]),
        (["--ray", "ray://head:10001"], ["--ray=ray://head:10001"]),
        (["--ray", "a.en", "a.de"], ["--ray=local", "a.en", "a.de"]),
        (["--ray", "--out", "x"], ["--ray=local", "--out", "x"]),
        (["--ray=auto"], ["--ray=auto"]),
    ],
)
def test_an_address_may_be_left_out(given, meant, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert spelled_out(given) == meant


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SaccadeError, match=r"--ray needs ray: pip install 'saccade\[scale\]'"):
        list(RayMapper("local").map(Times(1), [1]))
