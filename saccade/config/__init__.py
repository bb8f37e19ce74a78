"""Every setting there is, one documented class a section.

A configuration is YAML, changed by `section.key=value` arguments, checked as a whole before anything runs:

    config = Config.load("recipe.yaml", ["training.max_steps=60"])

`None` means *chosen for you*: `saccade.planning` fills it in from the corpus and the machine, says why, and the
folder keeps the resolved file. The sentence on each field is the help of the command line and the reference page.
"""

from saccade.config.data import CleaningConfig, CorpusConfig, DataConfig, TokenizerConfig
from saccade.config.models import FAMILIES, ClassifierConfig, ConvConfig, LMConfig, Model, RNNConfig, TransformerConfig
from saccade.config.reading import merge_settings, read_settings
from saccade.config.search import SearchConfig
from saccade.config.section import Placeholder, Section, Size, known
from saccade.config.training import TrainingConfig
from saccade.config.whole import Config, fields_of, is_override, names_of, split_arguments

__all__ = [
    "FAMILIES",
    "ClassifierConfig",
    "CleaningConfig",
    "Config",
    "ConvConfig",
    "CorpusConfig",
    "DataConfig",
    "LMConfig",
    "Model",
    "Placeholder",
    "RNNConfig",
    "SearchConfig",
    "Section",
    "Size",
    "TokenizerConfig",
    "TrainingConfig",
    "TransformerConfig",
    "fields_of",
    "is_override",
    "known",
    "merge_settings",
    "names_of",
    "read_settings",
    "split_arguments",
]
