"""What is written is text: no search leaves a character half written."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import saccade
from saccade.data.tokenizers import EOS
from saccade.generation.characters import Characters
from saccade.generation.rules import Prefixes

SPECIALS = 4  # ids before the bytes; EOS is one of them
BYTES = [b""] * SPECIALS + [bytes([byte]) for byte in range(256)]
RULE = Characters(BYTES).finished(torch.device("cpu"))


def left(written: bytes, rule=RULE, sentence: int = 0) -> set[int]:
    """The ids that may come next."""
    tokens = torch.tensor([[SPECIALS + byte for byte in written]], dtype=torch.long).view(1, -1)
    prefixes = Prefixes(tokens, torch.tensor([sentence]), torch.tensor([99]))
    return set((rule(torch.zeros(1, len(BYTES)), prefixes)[0] == 0).nonzero().flatten().tolist())


def is_text(written: bytes) -> bool:
    try:
        written.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.text(min_size=1, max_size=6))
def test_every_text_can_be_written_and_ends_only_where_a_character_does(text):
    letters = text.encode()
    for n, byte in enumerate(letters):
        assert SPECIALS + byte in left(letters[:n])
        assert (EOS in left(letters[:n])) == is_text(letters[:n])


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_whatever_is_chosen_of_what_may_come_is_text(choices):
    written = b""
    for choice in choices:
        allowed = sorted(left(written) - set(range(SPECIALS)))
        written += bytes([allowed[choice % len(allowed)] - SPECIALS])
    while EOS not in left(written):
        written += bytes([min(left(written) - set(range(SPECIALS))) - SPECIALS])
    assert is_text(written)


def test_a_piece_may_hold_the_end_of_one_character_and_the_beginning_of_another():
    pieces = [b"", "ü".encode()[:1], "ü".encode()[1:] + b"n", "ü".encode()[1:] + "日".encode()[:2], b"\xa5"]
    rule = Characters(pieces).finished(torch.device("cpu"))

    def may_follow(*tokens: int) -> list[int]:
        prefixes = Prefixes(torch.tensor([tokens], dtype=torch.long), torch.tensor([0]), torch.tensor([9]))
        return (rule(torch.zeros(1, 5), prefixes)[0] == 0).nonzero().flatten().tolist()

    assert may_follow(1) == [2, 3, 4]
    assert may_follow(1, 2) == [0, 1]
    assert may_follow(1, 3) == [2, 3, 4]
    assert may_follow(1, 3, 4) == [0, 1]  # 日 is whole


def test_other_sentences_are_left_alone_and_where_nothing_is_left_the_rule_gives_way():
    rule = Characters(BYTES).finished(torch.device("cpu"), torch.tensor([False, True]))
    assert len(left(b"\xc3", rule, sentence=0)) == len(BYTES)
    assert len(left(b"\xc3", rule, sentence=1)) == 0x40
    log_probs = torch.full((1, len(BYTES)), -float("inf"))
    log_probs[0, EOS] = 0.0  # the limit has come
    prefixes = Prefixes(torch.tensor([[SPECIALS + 0xC3]]), torch.tensor([1]), torch.tensor([2]))
    assert rule(log_probs, prefixes)[0, EOS] == 0


def test_draws_are_text_however_hot(trained):
    translator = saccade.load(trained)
    dates = [f"January {day}, 2021" for day in range(1, 25)]
    found = translator.translate(dates, method="sample", temperature=4.0, n_best=4, max_length=30, guard=False)
    drawn = [one for each in found for one in each.n_best]
    assert len({one.text for one in drawn if not one.text.isascii()}) > 40
    for one in drawn:
        whole = one.text if len(one.ids) < 30 else one.text[:-1]  # the last may be cut off by the limit
        assert "\ufffd" not in whole


@pytest.mark.parametrize("phrase", ["Łódź", "日本語", "🎉 x", "ﷺ"])
def test_a_phrase_of_rare_characters_leaves_none_half_written(trained, phrase):
    translator = saccade.load(trained)
    for text in ("January 5, 2021", "Monday", "one hundred and four"):
        found = translator.translate(text, must=[phrase], n_best=5, beam=8)
        for one in found.n_best:
            assert phrase in one.text
            assert "\ufffd" not in one.text
