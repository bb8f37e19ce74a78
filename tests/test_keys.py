"""API keys: shown once, kept as hashes, revoked while a server runs; rates by token buckets."""

import json
import os
import stat
from pathlib import Path

import pytest
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st

from saccade.errors import SaccadeError
from saccade.serving.keys import KeyRing, add_key, hash_of, read_keys, revoke_key
from saccade.serving.rates import Buckets, Rate


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "keys.json"
    made = command("keys", "add", "--name", "anna", "--rate", "60/min", "--file", file)
    token = made.out.strip()
    assert made.status == 0
    assert len(token) > 40
    assert "the only time the key is shown" in made.err.replace("\n", " ")
    assert token not in file.read_text()
    assert hash_of(token) in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    listed = command("keys", "list", "--file", file)
    assert "anna" in listed.out
    assert "60/min" in listed.out
    assert token not in listed.out
    assert KeyRing(file).holder(token) == ("anna", Rate(60, 60))
    assert command("keys", "revoke", "anna", "--file", file).status == 0
    assert KeyRing(file).holder(token) is None


def test_no_two_keys_are_alike_and_only_whole_keys_count(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    tokens = [add_key(file, str(number)) for number in range(5)]
    assert len(set(tokens)) == 5
    ring = KeyRing(file)
    for number, token in enumerate(tokens):
        holder = ring.holder(token)
        assert holder is not None
        assert holder.name == str(number)
        for wrong in (token[:-1], token + "x", token.swapcase(), "", hash_of(token), "\ud800"):
            assert ring.holder(wrong) is None


def test_a_running_server_sees_changes_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = add_key(file, "first")
    ring = KeyRing(file)
    second = add_key(file, "second")
    assert ring.holder(second) is not None
    revoke_key(file, "first")
    assert ring.holder(first) is None
    file.write_text("{ half")  # by hand, and not yet done: what was known goes on
    assert ring.holder(second) is not None
    file.unlink()
    assert ring.holder(second) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("add", "--name", "anna"), "has a key of that name; choose another, or revoke it first"),
        (("add", "--name", "bob", "--rate", "often"), "rate='often' is no rate; write one like 60/min"),
        (("add", "--name", "bob", "--rate", "0/min"), "is no rate"),
        (("add", "--name", ""), "a name has 1 to 100 characters"),
        (("revoke", "bob"), "has no key of that name; it has: anna"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, command: Command, arguments: tuple[str, ...], why: str) -> None:
    file = tmp_path / "keys.json"
    add_key(file, "anna")
    ended = command("keys", *arguments, "--file", file)
    assert ended.status == 2
    assert why in ended.err.replace("\n", " ")
    assert [key.name for key in read_keys(file)] == ["anna"]


@pytest.mark.parametrize("content", ["", "[]", '{"keys": [{"name": "x", "hash": "short"}]}', '{"keys": [], "more": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(SaccadeError, match="there is no such file of keys; make one with `saccade keys add`"):
        read_keys(file)
    file.write_text(content)
    with pytest.raises(SaccadeError, match="is no file of keys"):
        KeyRing(file)


def test_a_file_that_may_not_be_read_is_said_to_be_anothers(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"cannot be read \(.+\); it must be a file that belongs to the user"):
        read_keys(tmp_path)  # nor may a folder, by anyone


def test_a_rate_that_was_written_by_hand_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": "x", "hash": "0" * 64, "rate": "x"}]}))
    with pytest.raises(SaccadeError, match="is no rate"):
        read_keys(file)


@given(
    st.integers(1, 20),
    st.sampled_from([1, 60, 3600]),
    st.lists(st.floats(0, 100, allow_nan=False), max_size=80),
)
def test_no_window_has_more_than_twice_the_rate_and_waiting_as_told_helps(
    requests: int, seconds: int, pauses: list[float]
) -> None:
    now = 0.0
    buckets = Buckets(clock=lambda: now)
    rate = Rate(requests, seconds)
    taken: list[float] = []
    for pause in pauses:
        now += pause
        wait = buckets.take("a", rate)
        if wait is None:
            taken.append(now)
            continue
        assert 0 < wait <= seconds / requests + 1e-6
        now += wait + 1e-6
        assert buckets.take("a", rate) is None
        taken.append(now)
    for start in taken:  # what was saved up, and what came in since
        assert sum(start <= moment < start + seconds for moment in taken) <= 2 * requests + 1


def test_clients_do_not_share_buckets_and_few_are_remembered() -> None:
    buckets = Buckets(most=2, clock=lambda: 0.0)
    one = Rate(1, 60)
    assert buckets.take("a", one) is None
    assert buckets.take("b", one) is None
    assert buckets.take("a", one) == 60
    assert buckets.take("c", one) is None  # and b, who has not asked for longest, is forgotten
    assert len(buckets._held) == 2
