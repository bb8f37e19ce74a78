"""Settings: read, overridden, refused with a remedy."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from saccade.api import settings_from
from saccade.config import Config, is_override
from saccade.errors import SaccadeError
from saccade.reference import SECTIONS, reference_page


def test_overrides_change_what_they_name():
    config = Config.load(None, ["training.max_steps=60", "training.learning_rate=1e-3", "model.norm=post"])
    assert (config.training.max_steps, config.training.learning_rate, config.model.norm) == (60, 0.001, "post")


def test_a_file_is_read_and_overrides_win(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {family: rnn, cell: lstm}\ntraining: {max_steps: 5}\n")
    config = Config.load(path, ["training.max_steps=7"])
    assert (config.model.family, config.model.cell, config.training.max_steps) == ("rnn", "lstm", 7)


def test_a_file_that_extends_another_changes_only_what_it_names(tmp_path):
    (tmp_path / "base.yaml").write_text("model: {family: rnn, cell: lstm}\ntraining: {max_steps: 5}\n")
    (tmp_path / "deeper").mkdir()
    path = tmp_path / "deeper" / "recipe.yaml"
    path.write_text("extends: ../base.yaml\nmodel: {wiring: luong}\n")
    config = Config.load(path)
    assert (config.model.cell, config.model.wiring, config.training.max_steps) == ("lstm", "luong", 5)


def test_files_that_extend_each_other_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(SaccadeError, match="extends itself"):
        Config.load(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: [a.yaml]\n")
    with pytest.raises(SaccadeError, match="not the path of a YAML file"):
        Config.load(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("extends: nowhere.yaml\n")
    with pytest.raises(SaccadeError, match=r"d\.yaml: extends='nowhere\.yaml': there is no such file beside it"):
        Config.load(tmp_path / "d.yaml")


def test_saved_settings_are_read_back_as_they_were(tmp_path):
    config = Config.load(None, ["model.family=rnn", "data.train=[a.de,a.en]", "data.cleaning.max_ratio=3"])
    config.save(tmp_path / "config.yaml")
    assert Config.load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.widht=3", "unknown setting model.widht; did you mean model.width?"),
        ("modle.width=3", "unknown setting modle; did you mean model?"),
        ("data.cleaning.max_ration=3", "did you mean data.cleaning.max_ratio?"),
        ("training.qqqq=3", "known here: batch_tokens"),
        ("training.max_steps=-1", "training.max_steps=-1: input should be greater than 0"),
        ("search.temperature=.inf", "search.temperature=inf: input should be a finite number"),
        ("search.coverage_penalty=.nan", "search.coverage_penalty=nan: input should be a finite number"),
        ("search.length_penalty=1.0e6", "search.length_penalty=1000000.0: input should be less than or equal to 10"),
        ("training.precision=fp8", "training.precision='fp8': input should be 'fp32' or 'bf16'"),
        ("model.dropout=1.5", "model.dropout=1.5: input should be less than 1"),
        ("model.family=foo", "model.family='foo' is not known; use transformer, rnn, conv"),
        ("training.max_steps.deep=1", "training.max_steps"),
        ("training=3", "write section.key=value"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_the_remedy(override, message):
    with pytest.raises(SaccadeError) as error:
        Config.load(None, [override])
    assert message in str(error.value)


def test_what_is_wrong_is_told_of_the_file_or_of_the_command(tmp_path):
    (tmp_path / "a.yaml").write_text("model: {width: -1}\n")
    with pytest.raises(SaccadeError) as error:
        Config.load(tmp_path / "a.yaml", ["model.widht=3", "training.max_steps=2"])
    said = sorted(line.partition(": ")[::2] for line in str(error.value).split("\n"))
    assert [where for where, _ in said] == [str(tmp_path / "a.yaml"), "settings"]
    assert [what.split()[0] for _, what in said] == ["model.width=-1:", "unknown"]


def test_each_family_knows_its_own_settings():
    with pytest.raises(SaccadeError, match=r"did you mean model\.wiring\?"):
        Config.load(None, ["model.family=rnn", "model.wirring=luong"])
    with pytest.raises(SaccadeError, match=r"unknown setting model\.cell"):
        Config.load(None, ["model.cell=gru"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: [", "not valid YAML"),
        ("- a\n- b\n", "expected sections"),
        ("model: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(SaccadeError, match=message) as error:
        Config.load(path)
    assert str(path) in str(error.value)


def test_a_missing_or_foreign_file_is_named(tmp_path):
    with pytest.raises(SaccadeError, match=r"none\.yaml: cannot read"):
        Config.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe4\n")
    with pytest.raises(SaccadeError, match="not UTF-8"):
        Config.load(tmp_path / "latin.yaml")


def test_files_and_settings_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_override("training.max_steps=60")
    assert not is_override("train.de")
    (tmp_path / "data.set=1.de").touch()
    assert not is_override("data.set=1.de")
    with pytest.raises(SaccadeError, match="neither a setting nor a file"):
        settings_from(["trainign.max_steps=60"])


def test_languages_come_from_the_files_unless_they_are_given():
    assert settings_from(["train.de", "train.en.gz"]).data.source == "de"
    assert settings_from(["train.de", "train.en.gz"]).data.target == "en"
    assert settings_from(["train.de", "train.en", "data.source=gsw"]).data.source == "gsw"
    assert settings_from(["x.zh_CN", "x.pt-BR.gz"]).data.source == "zh_CN"
    assert settings_from(["a.txt", "b.txt"]).data.target == "target", "txt is no language"
    assert settings_from(["pairs.tsv"]).data.source == "source"
    assert settings_from([]).data.source == "en", "the built-in corpus has its own default"


def test_norwegian_is_a_language_and_no_is_still_a_no():
    assert Config.load(None, ["data.target=no"]).data.target == "no"
    assert Config.load(None, ["data.cleaning.enabled=no"]).data.cleaning.enabled is False


def test_python_can_choose_any_family_and_change_one_setting_of_a_section():
    config = settings_from([], sections={"model": {"family": "rnn"}, "data": {"cleaning": {"max_ratio": 3.0}}})
    assert config.model.family == "rnn"
    assert (config.data.cleaning.max_ratio, config.data.cleaning.max_characters) == (3.0, 2000)


def test_sections_can_be_given_as_keywords():
    config = settings_from(["training.max_steps=5"], sections={"training": {"max_steps": 6}, "model": {"size": "tiny"}})
    assert (config.training.max_steps, config.model.size) == (6, "tiny")
    with pytest.raises(SaccadeError, match="unknown section 'trainer'"):
        settings_from([], sections={"trainer": {}})


def test_settings_cannot_be_changed_behind_the_back():
    with pytest.raises(Exception, match="frozen"):
        Config().training.max_steps = 3


def test_every_setting_has_a_sentence_and_is_on_the_reference_page():
    page = reference_page()
    for _, prefix, section in SECTIONS:
        for name, field in section.model_fields.items():
            if name in ("family", "cleaning"):
                continue
            assert field.description
            assert field.description.endswith((".", "…", "…)"))
            assert f"`{prefix}.{name}`" in page


def test_the_schema_for_editors_names_every_section():
    schema = json.loads(json.dumps(Config.model_json_schema()))
    assert set(schema["properties"]) == {"data", "tokenizer", "model", "training", "search"}
    assert schema["additionalProperties"] is False


@given(st.sampled_from(["training.seed", "training.max_steps", "search.beam"]), st.integers(1, 10**9))
def test_numbers_survive_the_command_line(name, value):
    section, key = name.split(".")
    assert getattr(getattr(Config.load(None, [f"{name}={value}"]), section), key) == value


def test_resolved_settings_are_plain_yaml():
    assert yaml.safe_load(Config().to_yaml())["training"]["label_smoothing"] == 0.1


def test_one_section_can_be_shown_alone():
    page = reference_page("search")
    assert "`search.beam`" in page
    assert "`training.seed`" not in page


def test_one_setting_can_be_shown_alone():
    page = reference_page("training.max_steps")
    assert "`training.max_steps`" in page
    assert page.count("\n| `") == 1
    assert reference_page("model.dropout").count("| `model.dropout` |") == 5  # each family has its own
    assert "`data.cleaning.max_ratio`" in reference_page("data.cleaning")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("serach", "neither a setting nor a section; did you mean search"),
        ("zzz", "sections are data, tokenizer"),
        ("max_steps", "did you mean training.max_steps"),
        ("training.max_step", "did you mean training.max_steps"),
    ],
)
def test_a_setting_that_there_is_not_is_named_with_the_nearest(given, remedy):
    with pytest.raises(SaccadeError, match=remedy):
        reference_page(given)
