"""Files are there whole or not at all."""

import pytest

from saccade.files import sweep_partials, write_text, written_atomically


def test_a_file_takes_its_place_in_one_step(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    write_text(path, "old")
    with written_atomically(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail():
        with written_atomically(path) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_appears_whole(tmp_path):
    with written_atomically(tmp_path / "folder") as part:
        part.mkdir()
        (part / "one").write_text("1")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "one").read_text() == "1"


def test_what_a_killed_writer_left_is_swept_up_and_nothing_else(tmp_path):
    (tmp_path / ".model.x1.partial").mkdir()
    (tmp_path / ".model.x1.partial" / "model").write_text("half")
    (tmp_path / "model").write_text("whole")
    sweep_partials(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
