"""Text to pieces and back, exactly: what goes in comes out, spaces and all, whatever it is.

Every kind of tokenizer ends in bytes. A text is cut into runs (a word with the space before it, a digit, a group of
signs); a run is bytes; a piece is a string of bytes that came up often. All 256 bytes are pieces themselves, so
nothing is unknown, and decoding is putting the bytes side by side.
"""

import codecs
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from saccade.data.subword_dropout import BPEDropout, Seed
from saccade.data.unigram import SEEDS_PER_PIECE, Cut, learn_unigram, occurrences
from saccade.errors import SaccadeError
from saccade.files import write_text

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
KINDS = ("bpe", "unigram", "words", "characters", "bytes")

# Digits go one by one, because numbers are copied, not translated. Apostrophes stay inside words, so that the data
# decides whether `'s` or `l'` is a piece. The two joiners belong to the words of Persian and Hindi and to emoji.
# Letters never share a run with signs: this is why "<eos>" in a text cannot become the special piece of that name.
_LETTERS = r"[\p{L}\p{M}\x{200C}\x{200D}]+"
_RUNS = rf" ?{_LETTERS}(?:['’]{_LETTERS})*| ?\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|\s"
_CHARACTERS = r"[\s\S]"
_WORDS = re.compile(r"\s*\S+(?:\s+\Z)?|\s+\Z")
_SURROGATES = re.compile("[\ud800-\udfff]")

# In letters as in bytes: sixteen Chinese characters, more than any piece that comes up often.
LONGEST_PIECE = 48

# The runs of each kind; terms that are one piece (`saccade.data.extending`) are looked for before them.
RUNS = {"bpe": _RUNS, "unigram": _RUNS, "words": _RUNS, "characters": _CHARACTERS}
_INSIDE = r"[\p{L}\p{M}\p{N}]"
_ESCAPED = re.compile(r"\\x\{([0-9A-F]+)\}")


def _letters_of_bytes() -> tuple[str, ...]:
    """The letter that stands for each byte in the library's byte-level files: itself where it can be seen in print."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in visible else next(stand_ins)) for byte in range(256))


_ALPHABET = _letters_of_bytes()
_BYTE_OF = {letter: byte for byte, letter in enumerate(_ALPHABET)}


class Tokenizer:
    """Turns text into ids and ids into the same text.

    | kind         | pieces                                                                                    |
    |--------------|-------------------------------------------------------------------------------------------|
    | `bpe`        | byte-pair encoding (Sennrich et al. 2016): frequent neighbours are merged                   |
    | `unigram`    | the likeliest cut under a unigram model of pieces (Kudo 2018)                               |
    | `words`      | a word that came up twice or more is one piece; any other is spelled in bytes               |
    | `characters` | a character that came up twice or more is one piece; any other is spelled in bytes          |
    | `bytes`      | the 256 bytes; nothing is learned                                                           |

    Made by `train` or `load`.
    """

    def __init__(self, library: Any, kind: str) -> None:
        self._library = library
        self.kind = kind
        # Each word carries the space before it; the first word is given one, to look like any other.
        self._begins_with_space = library.normalizer is not None
        letters = [library.id_to_token(id) for id in range(library.get_vocab_size())]
        self._bytes = [b""] * len(SPECIALS) + [bytes(map(_BYTE_OF.__getitem__, piece)) for piece in letters[UNK + 1 :]]
        self._dropouts: dict[float, BPEDropout] = {}
        self.terms = _terms_of(library, kind)  # words that are one piece and never split

    @classmethod
    def train(cls, lines: Iterable[str], kind: str, vocabulary: int) -> "Tokenizer":
        """Learn a vocabulary of at most `vocabulary` pieces; a small text gives fewer. Same lines, same pieces."""
        if kind not in KINDS:
            raise SaccadeError(f"tokenizer.kind={kind!r} is not known; use {', '.join(KINDS)}")
        smallest = len(SPECIALS) + len(_ALPHABET)
        if kind != "bytes" and vocabulary < smallest:
            raise SaccadeError(
                f"tokenizer.vocabulary={vocabulary} is too small: {len(_ALPHABET)} bytes and {len(SPECIALS)} special "
                f"pieces make {smallest}; ask for 300 or more"
            )
        lines = map(_encodable, lines)
        if kind == "bpe":
            model = models.BPE(*_learn_bpe(lines, vocabulary))
        elif kind == "unigram":
            model = _train_unigram(lines, vocabulary)
        elif kind == "bytes":
            model = models.BPE(_numbered(()), [])
        else:
            model = _train_whole(lines, kind, vocabulary)
        return cls(_around(model, kind), kind)

    @property
    def size(self) -> int:
        """How many pieces there are; ids run from 0 to `size - 1`."""
        return len(self._bytes)

    @property
    def symbols(self) -> list[str]:
        """The name of each id in the library's own file, all different: what other programs call a piece."""
        return [self._library.id_to_token(id) for id in range(self.size)]

    @property
    def begins_with_space(self) -> bool:
        """Whether a word's piece carries the space before it, which the first word of a text is given."""
        return self._begins_with_space

    def id_of(self, symbol: str) -> int | None:
        """The id of a name in `symbols`; None: no piece is called so."""
        id: int | None = self._library.token_to_id(symbol)
        return id

    def runs(self, text: str) -> list[str]:
        """The runs of `text`, which no piece crosses, in the letters of `symbols`; no space is put before them."""
        return [run for run, _ in self._library.pre_tokenizer.pre_tokenize_str(_encodable(text))]

    def merged(self, run: str) -> list[int]:
        """The ids of one run."""
        return [token.id for token in self._library.model.tokenize(run)]

    @property
    def piece_bytes(self) -> Sequence[bytes]:
        """The bytes of each piece, by id; a special one has none."""
        return self._bytes

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing added. A lone surrogate, which is no character, becomes U+FFFD."""
        ids: list[int] = self._library.encode(_encodable(text)).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts, on all cores."""
        if len(texts) == 1:  # other cores are not worth waking for one
            return [self.encode(texts[0])]
        return [encoding.ids for encoding in self._library.encode_batch_fast([_encodable(text) for text in texts])]

    def sample(self, text: str, rate: float, seed: Seed) -> list[int]:
        """`encode` with BPE dropout: merges are skipped with probability `rate`; `seed` alone decides which."""
        if self.kind != "bpe":
            raise SaccadeError(
                f"training.subword_dropout={rate} needs tokenizer.kind=bpe, not {self.kind}; "
                "set training.subword_dropout=0 or tokenizer.kind=bpe"
            )
        if rate == 0:
            return self.encode(text)
        if rate not in self._dropouts:
            self._dropouts[rate] = BPEDropout(self._symbols, self._merges, rate)
        return self._dropouts[rate].sample(_encodable(text), seed)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: special ids are skipped, bytes that form no character become U+FFFD."""
        text = b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._begins_with_space else text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces for people: `▁` is a space, `<0xC3>` a byte of a character that was cut, `<eos>` a special id."""
        return [self._readable[id] for id in ids]

    def words(self, ids: Sequence[int]) -> list[int]:
        """The number of the word each piece belongs to; a special id is a word of its own.

        Words are what whitespace separates, with the signs that touch them; a text written without spaces is one word.
        """
        return self._words(ids)[0]

    def word_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each word that `words` numbers."""
        return self._words(ids)[1]

    def same_as(self, other: "Tokenizer") -> bool:
        """Whether both cut every text alike, into pieces with the same ids."""
        return self is other or self._library.to_str() == other._library.to_str()

    def offsets(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where each piece stands in what `decode` gives; a character in several pieces is the last one's."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ends = list(accumulate(len(decoder.decode(self._bytes[id])) for id in ids))
        skipped = int(self._begins_with_space and b"".join(self._bytes[id] for id in ids).startswith(b" "))
        return [(max(start - skipped, 0), max(end - skipped, 0)) for start, end in zip([0, *ends], ends, strict=False)]

    def save(self, path: str | Path) -> None:
        """Write one JSON file, in the library's own format."""
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """What `save` writes."""
        text: str = self._library.to_str(pretty=True)
        return text

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read what `save` wrote."""
        try:
            library = Library.from_str(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SaccadeError(f"{path}: cannot read the tokenizer: {error.strerror}") from None
        except Exception as error:  # the library raises nothing more precise
            raise SaccadeError(f"{path}: not a tokenizer, or a part of one: {error}; copy the file again") from None
        kind = _kind_of(library)
        if kind is None:
            raise SaccadeError(f"{path}: a tokenizer, but not one that Saccade wrote; train one with Saccade")
        return cls(library, kind)

    @classmethod
    def of_json(cls, text: str) -> "Tokenizer":
        """What `to_json` gave, changed or not."""
        library = Library.from_str(text)
        kind = _kind_of(library)
        assert kind is not None, "not the file of a tokenizer that Saccade made"
        return cls(library, kind)

    def _words(self, ids: Sequence[int]) -> tuple[list[int], list[str]]:
        numbers: list[int] = []
        texts: list[str] = []
        for is_special, group in groupby(ids, lambda id: id <= UNK):
            if is_special:
                for id in group:
                    numbers.append(len(texts))
                    texts.append(SPECIALS[id])
                continue
            pieces = [self._bytes[id] for id in group]
            number_of_byte: list[int] = []
            # Escaped, each byte that forms no character is still one character: positions stay known.
            for word in _WORDS.findall(b"".join(pieces).decode("utf-8", "surrogateescape")):
                raw = word.encode("utf-8", "surrogateescape")
                number_of_byte += [len(texts)] * len(raw)
                texts.append(raw.decode("utf-8", "replace").strip())
            start = 0
            for piece in pieces:
                numbers.append(number_of_byte[start])
                start += len(piece)
        return numbers, texts

    @cached_property
    def _readable(self) -> list[str]:
        return [*SPECIALS, *map(_readable, self._bytes[UNK + 1 :])]

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        ids = self._library.get_vocab(with_added_tokens=False)
        merges = json.loads(self._library.to_str())["model"]["merges"]
        return {(ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(merges)}

    @cached_property
    def _id_of_letter(self) -> dict[str, int]:
        return {letter: self._library.token_to_id(letter) for letter in _ALPHABET}

    def _symbols(self, text: str) -> list[list[int]]:
        terms = self._id_of_term
        return [
            [terms[run]] if run in terms else [self._id_of_letter[letter] for letter in run] for run in self.runs(text)
        ]

    @cached_property
    def _id_of_term(self) -> dict[str, int]:
        before = " " if self._begins_with_space else ""
        letters = [letters_of(before + term) for term in self.terms]
        return {piece: self._library.token_to_id(piece) for piece in letters}


class Tokenizers(NamedTuple):
    """The tokenizers of the two sides; one and the same object where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both sides share one vocabulary."""
        return self.source is self.target

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json`, or `tokenizer.source.json` and `tokenizer.target.json`, and nothing stale beside."""
        joint, source, target = _files(folder)
        written = {joint: self.source} if self.joint else {source: self.source, target: self.target}
        for path, tokenizer in written.items():
            tokenizer.save(path)
        for stale in {joint, source, target} - written.keys():
            stale.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizers":
        """Read what `save` wrote."""
        joint, source, target = _files(folder)
        if joint.exists():
            tokenizer = Tokenizer.load(joint)
            return cls(tokenizer, tokenizer)
        if not source.exists() and not target.exists():
            raise SaccadeError(f"{folder}: no tokenizer here ({joint.name}); is this the folder of a model?")
        return cls(Tokenizer.load(source), Tokenizer.load(target))


def _learn_bpe(lines: Iterable[str], vocabulary: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        max_token_length=LONGEST_PIECE,
        special_tokens=list(SPECIALS),
        initial_alphabet=list(_ALPHABET),
        show_progress=False,
    )
    # Taken out of the library and put back: a trainer registers its special tokens, and then they match in raw text.
    trained = json.loads(_trained(models.BPE(), "bpe", trainer, lines).to_str())["model"]
    return trained["vocab"], [(left, right) for left, right in trained["merges"]]


def _train_unigram(lines: Iterable[str], vocabulary: int) -> Any:
    words: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for line in lines:
            words.update(line.split(" "))
            yield line

    ids, merges = _learn_bpe(counted(), SEEDS_PER_PIECE * vocabulary)
    counts = occurrences(words, sorted(ids, key=ids.__getitem__), merges, _cut_with(models.BPE(ids, merges)))
    seeds = {piece: count for piece, count in counts.items() if piece not in SPECIALS}
    scores = learn_unigram(
        words, seeds, _ALPHABET, vocabulary - len(SPECIALS), lambda scores: _cut_with(models.Unigram([*scores.items()]))
    )
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return models.Unigram([*((special, 0.0) for special in SPECIALS), *ranked], UNK, False)


def _cut_with(model: Any) -> Cut:
    library = _around(model, "unigram")
    return lambda words: [encoding.ids for encoding in library.encode_batch_fast(words)]


def _train_whole(lines: Iterable[str], kind: str, vocabulary: int) -> Any:
    """Words or characters as they are, the most frequent first."""
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=[], show_progress=False)
    ids = _trained(models.WordLevel(), kind, trainer, lines).get_vocab()
    frequent = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in _BYTE_OF]
    room = vocabulary - len(SPECIALS) - len(_ALPHABET)
    # Without merges, a run that is not in the vocabulary as a whole falls apart into its bytes.
    return models.BPE(_numbered(frequent[:room]), [], ignore_merges=True)


def _trained(model: Any, kind: str, trainer: Any, lines: Iterable[str]) -> Any:
    library = _around(model, kind)
    library.train_from_iterator(lines, trainer)
    return library


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: id for id, piece in enumerate((*SPECIALS, *_ALPHABET, *pieces))}


def _around(model: Any, kind: str) -> Any:
    """What comes before the model and after it; `_kind_of` reads the kind back from this."""
    library = Library(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "bytes":
        library.pre_tokenizer = to_bytes
    else:
        runs = Regex(RUNS[kind])
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(runs, "isolated"), to_bytes])
    # For other programs that read the file; `decode` itself puts bytes side by side.
    library.decoder = decoders.ByteLevel()
    if kind not in ("characters", "bytes"):
        library.normalizer = normalizers.Prepend(" ")
        library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return library


def _kind_of(library: Any) -> str | None:
    """The kind of a tokenizer that `train` made; None for any other."""
    vocabulary = library.get_vocab()
    if (
        sorted(vocabulary.values()) != list(range(len(vocabulary)))
        or any(vocabulary.get(special) != id for id, special in enumerate(SPECIALS))
        or not vocabulary.keys() >= _BYTE_OF.keys()
        or any(set(piece) - _BYTE_OF.keys() for piece in vocabulary)
        or library.get_added_tokens_decoder()
    ):
        return None
    if isinstance(library.model, models.Unigram):
        return "unigram"
    if not isinstance(library.model, models.BPE):
        return None
    if isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel):
        return "bytes"
    if not library.model.ignore_merges:
        return "bpe"
    if library.normalizer is None:
        return "characters"
    # With terms, byte-pair encoding looks a run up before it merges it; words are never merged.
    return "bpe" if json.loads(library.to_str())["model"]["merges"] else "words"


def letters_of(text: str) -> str:
    """`text` in the letters that stand for its bytes, as in `Tokenizer.symbols`."""
    return "".join(_ALPHABET[byte] for byte in text.encode())


def spelled(terms: Sequence[str], before: str) -> str:
    """The part of a tokenizer's pattern that finds terms, to stand before its runs; the longest is looked for first."""
    alternatives = []
    for term in sorted(terms, key=len, reverse=True):
        escaped = "".join(f"\\x{{{ord(character):X}}}" for character in term)
        behind = f"(?<!{_INSIDE})" if not before and (term[0].isalnum()) else ""
        alternatives.append(behind + before + escaped + (f"(?!{_INSIDE})" if term[-1].isalnum() else ""))
    return "".join(f"{alternative}|" for alternative in alternatives)


def _terms_of(library: Any, kind: str) -> list[str]:
    """The terms that `spelled` put into the pattern."""
    if kind == "bytes":
        return []
    pattern: str = json.loads(library.pre_tokenizer.__getstate__())["pretokenizers"][0]["pattern"]["Regex"]
    alternatives = pattern.removesuffix(RUNS[kind]).split("|")[:-1]
    return ["".join(chr(int(code, 16)) for code in _ESCAPED.findall(alternative)) for alternative in alternatives]


def _encodable(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _readable(piece: bytes) -> str:
    text = piece.decode("utf-8", "surrogateescape").replace(" ", "▁")
    return _SURROGATES.sub(lambda escaped: f"<0x{ord(escaped.group()) - 0xDC00:02X}>", text)


def _files(folder: str | Path) -> tuple[Path, Path, Path]:
    folder = Path(folder)
    return folder / "tokenizer.json", folder / "tokenizer.source.json", folder / "tokenizer.target.json"


def _quiet_forks() -> None:
    """The library (0.22) warns when a process that used several cores is forked, as data loaders do, unless told.

    The child is told to use one core, which is what the warning would say it does anyway; the parent keeps them all.
    """
    name = "TOKENIZERS_PARALLELISM"
    ours: list[bool] = []

    def before() -> None:
        ours.append(name not in os.environ)
        os.environ.setdefault(name, "false")

    def after() -> None:
        if ours.pop():
            del os.environ[name]

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after)


_quiet_forks()
