"""Languages by the endings of file names."""

import re
from collections.abc import Sequence
from pathlib import Path

# ISO 639-1
CODES = frozenset(
    re.findall(
        "..",
        "aaabaeafakamanarasavayazbabebgbhbibmbnbobrbscacechcocrcscucvcydadedvdzeeeleneoeseteufafffifjfofrfygagdglgngugv"
        "hahehihohrhthuhyhziaidieigiiikioisitiujajvkakgkikjkkklkmknkokrkskukvkwkylalblglilnloltlulvmgmhmimkmlmnmrmsmtmy"
        "nanbndnengnlnnnonrnvnyocojomorospapiplpsptqurmrnrorurwsascsdsesgsiskslsmsnsosqsrssstsusvswtatetgthtitktltntotr"
        "tstttwtyugukuruzvevivowawoxhyiyozazhzu",
    )
)
ENDING = re.compile(r"\.(([a-z]{2})([-_][A-Za-z]{2,8})*)(\.gz)?$")


def languages_of(files: Sequence[str]) -> tuple[str, str]:
    """The languages of a pair of files, as in train.de train.en.gz; "source" and "target" where they do not tell.

    One file alone tells the target's.
    """
    found = [ENDING.search(Path(file).name) for file in files[:2]]
    if len(found) == 2 and all(match and match[2] in CODES for match in found):
        source, target = (match[1] for match in found if match)
        return source, target
    if len(files) == 1 and found[0] and found[0][2] in CODES:
        return "source", found[0][1]
    return "source", "target"
