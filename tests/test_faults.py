"""What can go wrong around a run goes wrong here for real: full disks, cut files, moved folders, broken numbers."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import torch
from conftest import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import saccade
from saccade import SaccadeError, api
from saccade.data import builtin
from saccade.files import written_atomically
from saccade.training import checkpoint

STEPS = ["training.validate_every=3", "training.checkpoint_every=3", "training.log_every=1", "training.warmup_steps=1"]
STEPS += ["training.batch_tokens=256", "training.average=1"]
SENTENCES = ["January 5, 2021", "seventeen", "", "8:15 PM"]
WEIGHTS_ROOM, CHECKPOINT_ROOM = 64 << 10, 200 << 10  # less than the weights; less than the optimizer's state of them

Mount = Callable[[str], Path]


@pytest.mark.parametrize(
    "room", [pytest.param(WEIGHTS_ROOM, id="the weights"), pytest.param(CHECKPOINT_ROOM, id="a checkpoint")]
)
def test_a_disk_that_refuses_a_file_leaves_the_old_one_and_the_run_goes_on_later(
    tmp_path: Path, tiny: list[str], room: int
) -> None:
    whole, folder = tmp_path / "undisturbed", tmp_path / "run"
    api.train(*tiny, *STEPS, "training.max_steps=6", out=whole, quiet=True)
    api.train(*tiny, *STEPS, "training.max_steps=3", out=folder, quiet=True)
    with files_up_to(room), pytest.raises(SaccadeError, match=r"File too large.*make room"):
        api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
    assert_whole(folder)
    api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_full_disk_leaves_the_old_model_and_the_run_goes_on_when_there_is_room(mount: Mount, tiny: list[str]) -> None:
    disk = mount("size=2m")
    folder, ballast = disk / "run", disk / "ballast"
    api.train(*tiny, *STEPS, "training.max_steps=3", out=folder, quiet=True)
    for room in (20_000, 100_000, 250_000):
        fill_up(disk, ballast, leaving=room)
        with pytest.raises(SaccadeError, match=r"No space left on device.*make room"):
            api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
        ballast.unlink()
        assert_whole(folder)
    api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
    assert_whole(folder, step=6)


@pytest.mark.parametrize("room", [100, 2_000, 8_000])
def test_a_disk_that_is_full_before_training_begins_says_so(tmp_path: Path, tiny: list[str], room: int) -> None:
    with files_up_to(room), pytest.raises(SaccadeError, match=r"File too large.*make room"):
        api.train(*tiny, *STEPS, "training.max_steps=3", out=tmp_path / "run", quiet=True)
    assert list(tmp_path.rglob("*.partial")) == []
    api.train(*tiny, *STEPS, "training.max_steps=3", out=tmp_path / "run", quiet=True)
    assert_whole(tmp_path / "run")


def test_a_disk_that_holds_the_first_weights_and_no_checkpoint_lets_the_same_command_begin_again(
    tmp_path: Path, tiny: list[str]
) -> None:
    whole, folder = tmp_path / "undisturbed", tmp_path / "run"
    api.train(*tiny, *STEPS, "training.max_steps=3", out=whole, quiet=True)
    with files_up_to(CHECKPOINT_ROOM), pytest.raises(SaccadeError, match=r"File too large.*make room"):
        api.train(*tiny, *STEPS, "training.max_steps=3", out=folder, quiet=True)
    assert (folder / "model.safetensors").exists()
    assert checkpoint.latest(folder / "resume") is None
    api.train(*tiny, *STEPS, "training.max_steps=3", out=folder, quiet=True)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_translations_that_do_not_fit_leave_the_old_file(tmp_path: Path, trained: Path, command: Command) -> None:
    output = tmp_path / "out.de"
    output.write_text("before\n")
    with files_up_to(16):
        done = command("translate", trained, "--output", output, "--beam", 1, stdin=b"June 7, 1999\nseventeen\n" * 8)
    assert done.status == 2
    assert "File too large" in done.err
    assert output.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [output]


def test_a_search_that_does_not_fit_in_memory_says_what_to_lower(
    trained: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("saccade.translator.generate", fail)
    done = command("translate", trained, "--beam", 7, stdin=b"seventeen\n")
    assert done.status == 2
    assert "lower search.beam (now 7)" in " ".join(done.err.split())


def test_a_full_standard_output_is_named_as_such(trained: Path) -> None:
    line = [sys.executable, "-m", "saccade", "translate", str(trained), "--beam", "1"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, input=b"seventeen\n", stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"standard output: cannot be written: No space left on device" in done.stderr


def test_a_write_that_fails_leaves_neither_a_part_nor_a_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def write_half() -> None:
        with written_atomically(path) as part:
            part.write_text("after, but only in par")
            raise EOFError

    with pytest.raises(EOFError):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("beyond", ["", "deeper/run"])
def test_a_file_in_place_of_the_folder_is_refused_by_name(tmp_path: Path, tiny: list[str], beyond: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SaccadeError, match=r"taken.*--out"):
        api.train(*tiny, *STEPS, "training.max_steps=3", out=tmp_path / "taken" / beyond, quiet=True)
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    "line",
    [
        ["corpus", "en", "de", "--pairs", 3, "--out", "{taken}/dates"],
        ["average", "{trained}/model.safetensors", "--out", "{taken}/mean"],
        ["compare", "{trained}", "--out", "{taken}/rows"],
        ["translate", "{trained}", "--input", "{taken}", "--output", "{trained}"],
        ["explain", "scaling", "--json", "{trained}"],
    ],
    ids=lambda line: line[0],
)
def test_a_file_for_a_folder_or_a_folder_for_a_file_is_refused_by_name(
    line: list[str | int], tmp_path: Path, trained: Path, command: Command
) -> None:
    (tmp_path / "taken").write_text("seventeen\n")
    done = command(*(str(part).format(taken=tmp_path / "taken", trained=trained) for part in line))
    assert done.status == 2
    assert "cannot be written" in done.err
    assert (tmp_path / "taken").read_text() == "seventeen\n"


def test_a_place_that_cannot_be_written_to_is_refused_by_name(mount: Mount, tiny: list[str]) -> None:
    disk = mount("ro")
    with pytest.raises(SaccadeError, match=r"run.*Read-only file system.*--out"):
        api.train(*tiny, *STEPS, "training.max_steps=3", out=disk / "run", quiet=True)


def test_restart_never_removes_a_folder_that_is_not_a_run(tmp_path: Path, tiny: list[str]) -> None:
    (tmp_path / "thesis.tex").write_text("four years")
    with pytest.raises(SaccadeError, match="--restart"):
        api.train(*tiny, *STEPS, "training.max_steps=3", out=tmp_path, quiet=True, restart=True)
    assert (tmp_path / "thesis.tex").read_text() == "four years"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_cut_file_of_a_model_is_named_with_the_remedy(folder: Path, name: str, share: float) -> None:
    with cut(folder / name, share), pytest.raises(SaccadeError, match=rf"{name}: .*copy the f(ile|older) again"):
        saccade.load(folder)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_cut_config_is_refused_by_name_or_still_fits_the_weights(folder: Path, share: float) -> None:
    with cut(folder / "config.yaml", share):
        try:
            saccade.load(folder)
        except SaccadeError as error:
            assert "config.yaml" in str(error)  # noqa: PT017


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_cut_record_is_named_by_info(folder: Path, command: Command, share: float) -> None:
    with cut(folder / "record.json", share):
        done = command("info", folder)
        assert done.status == 2
        assert "record.json" in done.err
        assert saccade.load(folder).translate("seventeen").source == "seventeen"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize(
    "name",
    [
        "resume/step-00000003/state.json",
        "resume/step-00000003/model.safetensors",
        "resume/step-00000003/optimizer.safetensors",
        "resume/data/prepared.json",
        "resume/data/tokenizer.json",
        "resume/data/train/tokens.bin",
        "resume/data/valid/store.json",
    ],
)
def test_a_cut_file_of_a_run_is_named_when_it_is_to_go_on(run: Path, tiny: list[str], name: str, share: float) -> None:
    with cut(run / name, share):
        with pytest.raises(SaccadeError, match=Path(name).name) as refused:
            api.train(*tiny, *STEPS, "training.max_steps=6", out=run, quiet=True)
        assert ";" in str(refused.value), "no remedy is named"
    assert_whole(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "cannot be read"),
        ('{"step": "x"}', "step='x': .*valid integer"),
        ('{"step": 3, "moon": 4}', "moon=4: unexpected keyword argument; .* version of Saccade that wrote it"),
    ],
)
def test_a_place_that_is_none_is_named_when_a_run_is_to_go_on(
    run: Path, tiny: list[str], text: str, message: str
) -> None:
    place = run / "resume/step-00000003/state.json"
    before = place.read_text()
    place.write_text(text)
    try:
        with pytest.raises(SaccadeError, match=rf"state\.json: {message}"):
            api.train(*tiny, *STEPS, "training.max_steps=6", out=run, quiet=True)
    finally:
        place.write_text(before)
    assert_whole(run)


def test_removing_a_damaged_checkpoint_goes_one_back_as_the_message_says(tmp_path: Path, tiny: list[str]) -> None:
    folder = tmp_path / "run"
    api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
    whole = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "resume" / "step-00000006")
    place = checkpoint.latest(folder / "resume")
    assert place is not None, "there is nothing to go back to"
    assert place.name == "step-00000003"
    api.train(*tiny, *STEPS, "training.max_steps=6", out=folder, quiet=True)
    assert (folder / "model.safetensors").read_bytes() == whole


def test_weights_of_another_model_are_refused_with_both_shapes(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.dim() == 2)
    save_file(weights | {name: weights[name][:-1].contiguous()}, tmp_path / "shape.safetensors")
    with pytest.raises(SaccadeError, match=rf"weight {name} has shape .* the model wants"):
        saccade.load(folder, weights=tmp_path / "shape.safetensors")
    del weights[name]
    save_file(weights, tmp_path / "less.safetensors")
    with pytest.raises(SaccadeError, match=rf"weight {name} is not in the file"):
        saccade.load(folder, weights=tmp_path / "less.safetensors")
    save_file(weights | {name: torch.zeros(1), "extra": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(SaccadeError, match=r"more\.safetensors: weight"):
        saccade.load(folder, weights=tmp_path / "more.safetensors")


@pytest.mark.parametrize("missing", ["model.safetensors", "config.yaml", "tokenizer.json"])
def test_a_folder_without_one_of_its_files_is_refused_by_name(folder: Path, tmp_path: Path, missing: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / missing).unlink()
    with pytest.raises(SaccadeError, match=rf"copy.*{missing}"):
        saccade.load(tmp_path / "copy")


def test_no_folder_at_all_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"nowhere: there is no such folder; train one with: saccade train"):
        saccade.load(tmp_path / "nowhere")


def test_a_folder_moved_elsewhere_translates_the_same_without_the_corpus(tmp_path: Path, tiny: list[str]) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    pairs = list(islice(builtin.pairs("en", "de", seed=1, split="train"), 200))
    for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (corpus / f"train.{language}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    made = tmp_path / "here" / "run"
    files = corpus / "train.en", corpus / "train.de"
    api.train(*files, *tiny, *STEPS, "training.max_steps=30", "training.learning_rate=0.01", out=made, quiet=True)
    before = saccade.load(made).translate(SENTENCES)

    moved = tmp_path / "there" / "renamed"
    moved.parent.mkdir()
    shutil.move(made, moved)
    shutil.rmtree(corpus)
    shutil.rmtree(moved / "resume")
    after = saccade.load(moved).translate(SENTENCES)
    assert [(t.text, t.score) for t in after] == [(t.text, t.score) for t in before]
    assert str(tmp_path / "here") not in (moved / "README.md").read_text(encoding="utf-8")


def test_a_rate_that_blows_the_weights_up_ends_with_the_first_bad_tensor_named(tmp_path: Path, tiny: list[str]) -> None:
    wild = ["training.learning_rate=1e30", "training.clip_norm=0", "training.schedule=constant"]
    with pytest.raises(
        SaccadeError, match=r"training broke at step \d+: the (weight|output of|gradient of) \w+.*"
    ) as it:
        api.train(*tiny, *STEPS, *wild, "training.max_steps=30", out=tmp_path / "run", quiet=True)
    assert "lower training.learning_rate (now 1e+30)" in str(it.value)
    assert list((tmp_path / "run").rglob("*.partial")) == []


def test_a_poisoned_weight_is_named_and_nothing_of_it_is_saved(run: Path, tmp_path: Path, tiny: list[str]) -> None:
    shutil.copytree(run, tmp_path / "run")
    place = checkpoint.latest(tmp_path / "run" / "resume")
    assert place is not None
    weights = load_file(place / "model.safetensors")
    name = next(name for name in weights if "decoder" in name)
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, place / "model.safetensors")
    with pytest.raises(SaccadeError, match=rf"training broke at step 4: the weight {name} has NaN or infinite values"):
        api.train(*tiny, *STEPS, "training.max_steps=6", out=tmp_path / "run", quiet=True)
    assert_whole(tmp_path / "run", step=3)
    assert all(bool(t.isfinite().all()) for t in load_file(tmp_path / "run" / "model.safetensors").values())


def test_the_rate_can_be_lowered_when_training_broke_as_the_message_says(tmp_path: Path, tiny: list[str]) -> None:
    folder, gentle, wild = tmp_path / "run", "training.learning_rate=0.001", "training.learning_rate=1e30"
    api.train(*tiny, *STEPS, gentle, "training.max_steps=3", out=folder, quiet=True)
    with pytest.raises(SaccadeError, match=r"lower training\.learning_rate .* goes on from the last checkpoint"):
        api.train(*tiny, *STEPS, wild, "training.clip_norm=1", "training.max_steps=30", out=folder, quiet=True)
    api.train(*tiny, *STEPS, gentle, "training.max_steps=6", out=folder, quiet=True)
    assert_whole(folder, step=6)


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained folder to cut about in."""
    return Path(shutil.copytree(trained, tmp_path_factory.mktemp("folder") / "en-de"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> Path:
    """A run of three steps, ready to go on."""
    place = tmp_path_factory.mktemp("run") / "run"
    api.train(*tiny, *STEPS, "training.max_steps=3", out=place, quiet=True)
    return place


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A small disk of its own, for those who may mount one."""
    place = tmp_path / "disk"
    place.mkdir()

    def at(options: str) -> Path:
        tool = shutil.which("mount")
        if tool is None or subprocess.run([tool, "-t", "tmpfs", "-o", options, "tmpfs", place]).returncode:
            pytest.skip("mounting a disk takes a privilege that is not there")
        return place

    yield at
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """While it lasts, the system refuses to make any file larger than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def cut(path: Path, share: float) -> Iterator[None]:
    """While it lasts, only the first part of a file is there."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    try:
        yield
    finally:
        path.write_bytes(whole)


def fill_up(disk: Path, ballast: Path, leaving: int) -> None:
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(bytes(free - leaving))


def assert_whole(folder: Path, step: int = 3) -> None:
    """Nothing half-written is there, the model translates, and the run can go on from `step`."""
    assert list(folder.rglob("*.partial")) == []
    assert [t.source for t in saccade.load(folder).translate(SENTENCES)] == SENTENCES
    place = checkpoint.latest(folder / "resume")
    assert place is not None
    assert json.loads((place / "state.json").read_text())["step"] == step
