"""A folder whose new files cannot be loaded is tried again later and later, and at once when it changes."""

import logging
import shutil

import pytest
from served import serving, wait_until

import saccade
from saccade.serving import pool
from saccade.serving.trying import MOST, Tries


def test_what_fails_is_tried_again_after_twice_the_time_up_to_a_minute():
    now = 0.0
    tries = Tries(2.0, clock=lambda: now)
    assert tries.due("a")
    waits = []
    for _ in range(8):
        waits.append(tries.failed("a"))
        assert not tries.due("a")
        now += waits[-1] - 0.01
        assert not tries.due("a")
        now += 0.01
        assert tries.due("a")
    assert waits == [2, 4, 8, 16, 32, MOST, MOST, MOST]


def test_what_has_changed_is_tried_at_once_and_has_little_to_wait_again():
    tries = Tries(2.0, clock=lambda: 0.0)
    assert [tries.failed("a") for _ in range(4)] == [2, 4, 8, 16]
    assert tries.due("b")
    assert tries.failed("b") == 2
    assert not tries.due("b")


@pytest.fixture
def tried(caplog):
    """What the log says of tries that failed."""
    caplog.set_level(logging.WARNING, "saccade.serving")
    return lambda: [record.fields for record in caplog.records if record.message == "model not reloaded"]


def test_a_folder_that_stays_broken_is_looked_at_but_not_loaded_again_and_again(
    trained, second, tmp_path, monkeypatch, tried
):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("resume", "tensorboard"))
    looks = []
    look_at = pool._look_at
    monkeypatch.setattr(pool, "_look_at", lambda where: looks.append(look_at(where)) or looks[-1])
    monkeypatch.setattr(
        pool, "Tries", lambda first: Tries(first, clock=lambda: 0.0)
    )  # the time of the next never comes
    with serving(folder, reload_every=0.02) as served:
        before = served.texts("January 5, 2021")
        (folder / "model.safetensors").write_bytes(b"half")
        wait_until(lambda: len(tried()) == 1)
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 10)
        (said,) = tried()
        assert said["model"] == "model"
        assert "model.safetensors" in said["why"]
        assert said["again_in"] == 0.02
        (folder / "model.safetensors").write_bytes(b"another half")
        wait_until(lambda: len(tried()) == 2)
        assert served.texts("January 5, 2021") == before
        for path in second.iterdir():
            if path.is_file():
                shutil.copy2(path, folder)
        other = saccade.load(second, "cpu").translate("January 5, 2021").text
        wait_until(lambda: served.texts("January 5, 2021") == [other])


def test_a_folder_that_cannot_be_read_is_said_as_often(trained, tmp_path, tried):
    folder = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("resume", "tensorboard"))
    with serving(folder, reload_every=0.02) as served:
        before = served.texts("January 5, 2021")
        folder.rename(tmp_path / "away")
        wait_until(lambda: len(tried()) >= 3)
        assert [said["again_in"] for said in tried()[:3]] == [0.02, 0.04, 0.08]
        assert served.texts("January 5, 2021") == before
        (tmp_path / "away").rename(folder)
        assert served.texts("January 6, 2021")
