"""Saccade: sequence-to-sequence learning with attention.

>>> import saccade
>>> translator = saccade.load("runs/demo")
>>> translator.translate("Thursday, August 14, 1992").text
"""

from typing import TYPE_CHECKING, Any

from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.api import Translation, Translator, load, train

__version__: str

__all__ = ["SaccadeError", "Translation", "Translator", "load", "train"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `saccade --help` and the settings need none of it.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("saccade")
        except PackageNotFoundError:  # run as it lies there: no reason to lose a run at its end
            return "0+not.installed"
    if name in __all__:
        from saccade import api

        return getattr(api, name)
    raise AttributeError(f"module 'saccade' has no attribute {name!r}")
