"""LibreTranslate's own server with one of our CTranslate2 exports in it, for `benchmarks.serving --anchor`.

    PYTHON -m pip install libretranslate tokenizers
    PYTHON benchmarks/libretranslate_server.py EXPORT en de --port 5055

PYTHON is one of its own, since LibreTranslate pins what it needs. Everything is theirs (Flask, waitress, the calls of
CTranslate2) but for two parts that would be downloads: pieces come from our `tokenizer.json`, and a text is one
sentence.
"""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

EXPORT, SOURCE, TARGET = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]


def install(packages: Path) -> None:
    """The export as a package of Argos Translate, in both directions: fewer than two packages make it look for more."""
    for here, there in ((SOURCE, TARGET), (TARGET, SOURCE)):
        place = packages / f"translate-{here}_{there}-1_0"
        place.mkdir(parents=True)
        (place / "model").symlink_to(EXPORT)
        (place / "sentencepiece.model").symlink_to(EXPORT / "tokenizer.json")
        described = {"package_version": "1.0", "argos_version": "1.0", "from_code": here, "to_code": there}
        (place / "metadata.json").write_text(json.dumps(described | {"from_name": here, "to_name": there}))


with tempfile.TemporaryDirectory() as data:
    install(Path(data) / "packages")
    os.environ.update(ARGOS_PACKAGES_DIR=f"{data}/packages", XDG_DATA_HOME=data, XDG_CACHE_HOME=data, HOME=data)

    from argostranslate import package, translate
    from libretranslate.main import main
    from tokenizers import Tokenizer

    class OurTokenizer:
        def __init__(self, model_file: Path) -> None:
            self.library = Tokenizer.from_file(str(model_file))

        def encode(self, sentence: str) -> list[str]:
            return self.library.encode(sentence).tokens

        def decode(self, tokens: list[str]) -> str:
            return self.library.decode([self.library.token_to_id(token) for token in tokens])

    class OneSentence:
        def __init__(self, pkg: object) -> None:
            """Any package will do."""

        def split_sentences(self, text: str) -> list[str]:
            return [text]

    logging.getLogger("argostranslate.utils").setLevel(logging.WARNING)  # it writes several lines a request
    package.SentencePieceTokenizer = OurTokenizer
    translate.MiniSBDSentencizer = OneSentence
    sys.argv = ["libretranslate", *sys.argv[4:], "--load-only", f"{SOURCE},{TARGET}", "--disable-web-ui"]
    main()
