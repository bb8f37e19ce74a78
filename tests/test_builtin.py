import itertools
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.builtin import (
    CURRENCIES,
    LOCALES,
    UNITS,
    Date,
    Duration,
    Joined,
    Money,
    Months,
    Number,
    Quantity,
    Quarter,
    Relative,
    Time,
    pairs,
    render,
    split_of,
)
from saccade.errors import SaccadeError

SPLITS = ("train", "valid", "test")
SOME_PAIRS = (("en", "de"), ("de", "ja"), ("en", "hu"), ("fr", "ru"), ("sv", "nl"))


def first(count, source="en", target="de", **options):
    return list(itertools.islice(pairs(source, target, **options), count))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            Date(1992, 8, 14, "full"),
            {
                "en": "Friday, August 14, 1992",
                "de": "Freitag, 14. August 1992",
                "fr": "vendredi 14 août 1992",
                "es": "viernes, 14 de agosto de 1992",
                "ru": "пятница, 14 августа 1992 г.",
                "hu": "1992. augusztus 14., péntek",
                "ja": "1992年8月14日金曜日",
            },
        ),
        (Date(2001, 3, 9, "long"), {"en": "March 9, 2001", "nl": "9 maart 2001", "fi": "9. maaliskuuta 2001"}),
        (Time(15, 7), {"en": "3:07 PM", "de": "15:07", "fi": "15.07"}),
        (Quarter(1992, 3), {"en": "3rd quarter 1992", "de": "3. Quartal 1992", "hu": "1992. III. negyedév"}),
        (Months(1992, 8, 11), {"en": "August – November 1992", "ja": "1992年8月～11月", "fi": "elo–marraskuu 1992"}),
        (Relative(3, "day", True), {"en": "3 days ago", "de": "vor 3 Tagen", "fr": "il y a 3 jours"}),
        (Relative(1, "year", False), {"en": "in 1 year", "hu": "1 év múlva", "ru": "через 1 год"}),
        (
            Duration(7, 22),
            {"en": "7 hours and 22 minutes", "es": "7 horas y 22 minutos", "ro": "7 ore și 22 de minute"},
        ),
        (Quantity(21, "temperature-celsius"), {"en": "21 degrees Celsius", "ja": "摂氏 21 度"}),
        (Quantity(5, "speed-kilometer-per-hour"), {"de": "5 Kilometer pro Stunde", "it": "5 chilometri orari"}),
    ],
)
def test_a_value_is_said_as_the_locale_says_it(value, expected):
    assert {locale: render(value, locale) for locale in expected} == expected


@pytest.mark.parametrize(
    ("hundredths", "style", "expected"),
    [
        (100, "name", {"en": "1 US dollar", "pl": "1 dolar amerykański"}),
        (2_100, "name", {"en": "21 US dollars", "ru": "21 доллар США", "pl": "21 dolarów amerykańskich"}),
        (330_000, "name", {"en": "3,300 US dollars", "ru": "3 300 долларов США", "fr": "3 300 dollars des États-Unis"}),
        (1_250, "name", {"en": "12.50 US dollars", "pl": "12,50 dolara amerykańskiego"}),
        (1_250, "standard", {"en": "$12.50", "de": "12,50 $", "nl": "US$ 12,50"}),
        (2_100, "standard", {"en": "$21.00", "de": "21,00 $"}),
    ],
)
def test_money_agrees_with_its_number_and_the_symbol_is_where_it_belongs(hundredths, style, expected):
    assert {locale: render(Money(hundredths, "USD", style), locale) for locale in expected} == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (42, {"en": "forty-two", "de": "zweiundvierzig", "fr": "quarante-deux", "ja": "四十二", "sv": "fyrtiotvå"}),
        (96, {"fr": "quatre-vingt-seize", "es": "noventa y seis", "pt": "noventa e seis"}),
        (118, {"it": "centodiciotto"}),
        (123, {"it": "centoventitré"}),
        (1201, {"pt": "mil duzentos e um", "sv": "ettusen tvåhundraett", "nl": "duizend tweehonderdeen"}),
        (2002, {"hu": "kétezer-kettő", "nl": "tweeduizend twee", "uk": "дві тисячі два"}),
        (5, {"uk": "пʼять", "it": "cinque"}),
    ],
)
def test_numbers_are_spelled_as_in_the_dictionary(number, expected):
    assert {locale: render(Number(number), locale) for locale in expected} == expected


def test_two_parts_are_joined_by_the_locale_s_own_words():
    day, hour = Date(2001, 3, 9, "full"), Time(15, 7)
    assert render(Joined("at", (day, hour)), "en") == "Friday, March 9, 2001, 3:07 PM"
    assert render(Joined("at", (day, hour)), "hu") == "2001. március 9., péntek 15:07"
    either = Joined("or", (Number(7), Number(21)))
    assert render(either, "de") == "sieben oder einundzwanzig"
    assert render(either, "ja") == "七または二十一"
    both = Joined("and", (Money(500, "EUR", "name"), Money(700, "CHF", "name")))
    assert render(both, "fr") == "5 euros et 7 francs suisses"


@pytest.mark.parametrize(
    ("second", "expected"),
    [(Number(8), "siete u ocho"), (Number(11), "siete u once"), (Number(9), "siete o nueve")],
)
def test_spanish_or_becomes_u_before_an_o(second, expected):
    assert render(Joined("or", (Number(7), second)), "es") == expected


@pytest.mark.parametrize(("amount", "expected"), [(8, "u 8"), (80, "u 80"), (11, "u 11"), (1, "o 1"), (18, "o 18")])
def test_spanish_or_heeds_how_digits_are_read(amount, expected):
    either = Joined("or", (Quantity(3, "mass-gram"), Quantity(amount, "length-meter")))
    assert f" {expected} metro" in render(either, "es")


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_pairs(split):
    assert first(300, split=split) == first(300, split=split)
    assert first(300, split=split) == first(500, split=split)[:300]
    assert first(300, split=split) != first(300, split=split, seed=2)


def test_the_first_pairs_are_the_same_on_every_machine():
    assert first(3) == [
        ("29 square meters", "29 Quadratmeter"),
        ("3,300 British pounds and 24 euros", "3.300 Britische Pfund und 24 Euro"),
        ("53 euros and 6,000 Australian dollars", "53 Euro und 6.000 Australische Dollar"),
    ]


def test_the_hash_seed_of_the_process_does_not_matter():
    program = (
        "import itertools; from saccade.data.builtin import pairs\n"
        "for split in ('train', 'valid', 'test'):\n"
        "    print(*itertools.islice(pairs('en', 'ja', split=split), 100), sep='\\n')"
    )
    expected = "\n".join(str(pair) for split in SPLITS for pair in first(100, "en", "ja", split=split)) + "\n"
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        assert result.stdout.decode().replace("\r\n", "\n") == expected


def test_all_locales_tell_the_same_values():
    german = dict(first(500, "en", "de"))
    french = dict(first(500, "en", "fr"))
    shared = german.keys() & french.keys()
    assert len(shared) > 450
    assert {(target, source) for source, target in first(500, "de", "en")} == set(first(500, "en", "de"))


@pytest.mark.parametrize(("source", "target"), SOME_PAIRS)
def test_no_held_out_pair_is_ever_trained_on(source, target):
    seen = {split: set(first(1500, source, target, split=split)) for split in SPLITS}
    seen["train"] |= set(first(2000, source, target, seed=7))
    for one, other in itertools.combinations(SPLITS, 2):
        assert not seen[one] & seen[other]
        # Not one side of it either: a held-out source cannot have been read with another translation.
        for side in (0, 1):
            assert not {pair[side] for pair in seen[one]} & {pair[side] for pair in seen[other]}


def test_some_weekdays_never_meet_some_months_in_training():
    dated = re.compile(r"^(\w+day), (\w+) \d+, \d+")
    met = {
        split: {match.groups() for source, _ in first(4000, split=split) if (match := dated.match(source))}
        for split in SPLITS
    }
    for split in ("valid", "test"):
        held_out = met[split] - met["train"]
        assert held_out
        assert {weekday for weekday, _ in held_out} <= {weekday for weekday, _ in met["train"]}
        assert {month for _, month in held_out} <= {month for _, month in met["train"]}
    assert len(met["train"]) < 7 * 12


def test_every_word_below_twenty_is_met_in_training():
    words = {word for source, _ in first(4000) for word in re.findall("[a-z]+", source)}
    for number in (*range(1, 20), *range(20, 100, 10)):
        assert render(Number(number), "en") in words


def test_every_value_belongs_to_one_split_and_most_to_train():
    shares = Counter(split_of(Number(number)) for number in range(10_000))
    assert set(shares) == set(SPLITS)
    assert shares["train"] > 7500
    assert min(shares.values()) > 300


@pytest.mark.parametrize("split", SPLITS)
def test_all_pairs_of_locales_give_clean_lines(split):
    texts = set()
    for source, target in itertools.permutations(LOCALES, 2):
        for pair in first(20 if split == "train" else 5, source, target, split=split, seed=3):
            assert pair[0] != pair[1]
            texts.update(pair)
    for text in texts:
        assert text
        assert text == unicodedata.normalize("NFC", text).strip()
        assert all(character == " " or not character.isspace() for character in text)
        assert "  " not in text
        assert text.isprintable()
        assert not re.search(r"[{}¤]|(length|mass|volume|area|speed|temperature)-", text)


def test_no_locale_lacks_a_unit_or_a_currency():
    for locale in LOCALES:
        for unit in UNITS:
            for amount in (1, 3, 5, 21):
                text = render(Quantity(amount, unit), locale)
                assert str(amount) in text
                assert unit not in text
        names = {render(Money(2_100, currency, "name"), locale) for currency in CURRENCIES}
        assert len(names) == len(CURRENCIES)
        assert not any(currency in name for name in names for currency in CURRENCIES)


@settings(max_examples=60, deadline=None)
@given(number=st.integers(0, 9_999), other=st.integers(0, 9_999))
def test_different_numbers_never_read_the_same(number, other):
    for locale in LOCALES:
        assert (render(Number(number), locale) == render(Number(other), locale)) == (number == other)


@pytest.mark.parametrize(("source", "target"), SOME_PAIRS)
def test_few_pairs_repeat(source, target):
    assert len(set(first(5000, source, target))) > 4_800
    assert len(set(first(2000, source, target, split="test"))) > 1_700


def test_sentences_are_short_but_not_single_words():
    lengths = [len(source.split()) for source, _ in first(3000)]
    assert max(lengths) <= 15
    assert sum(length >= 3 for length in lengths) / len(lengths) > 0.8


def test_words_often_change_order():
    """Digits are the words that can be followed without a dictionary: count the pairs where they are permuted."""
    for target, at_least in (("de", 0.1), ("hu", 0.4), ("ja", 0.4)):
        digits = [tuple(re.findall(r"\d+", text) for text in pair) for pair in first(2000, "en", target)]
        moved = sum(source != other and set(source) & set(other) != set() for source, other in digits)
        assert moved / len(digits) > at_least


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("en_US", "en"), ("de-AT", "de"), ("German", "de"), ("français", "fr"), ("japan", "ja"), ("Magyar", "hu")],
)
def test_an_unknown_locale_is_named_with_the_known_ones_and_the_nearest(name, nearest):
    with pytest.raises(SaccadeError) as error:
        pairs("sv", name)
    message = str(error.value)
    assert f"no target locale {name!r}" in message
    assert ", ".join(LOCALES) in message
    assert message.endswith(f"did you mean {nearest}?")


def test_a_locale_like_no_other_gets_no_suggestion():
    with pytest.raises(SaccadeError, match="no source locale 'xyz'; it has en, de") as error:
        pairs("xyz", "de")
    assert "did you mean" not in str(error.value)


def test_a_locale_is_not_translated_into_itself():
    with pytest.raises(SaccadeError, match="both 'fr'; choose two of en, de"):
        pairs("fr", "fr")


def test_an_unknown_split_is_refused():
    with pytest.raises(SaccadeError, match="no split 'dev'; it has train, valid, test"):
        pairs("en", "de", split="dev")  # type: ignore[arg-type]
