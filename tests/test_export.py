"""Exported models give the same tokens as the original, and engines the same answers."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY, Command

import saccade
from saccade.config import Config
from saccade.data import builtin
from saccade.engines.ctranslate2 import CTranslate2Engine
from saccade.errors import SaccadeError
from saccade.export import ctranslate2 as to_ctranslate2
from saccade.export import fit
from saccade.export.run import export
from saccade.export.verify import searches, verify
from saccade.generation.guard import Finding
from saccade.models.build import with_shape

# Every option of the Transformer is in one of them.
VARIANTS: dict[str, list[str]] = {
    "pre-norm": [],
    "post-norm, untied, gelu": ["model.norm=post", "model.tied=none", "model.activation=gelu"],
    "deepnorm, silu": ["model.norm=deep", "model.activation=silu", "model.decoder_layers=2"],
    "learned positions, two vocabularies": ["model.positions=learned", "tokenizer.joint=false"],
    "rotary, rms, swiglu, multi-query": [
        "model.positions=rotary",
        "model.normalisation=rms",
        "model.activation=swiglu",
        "model.key_heads=1",
    ],
    "shaw, grouped-query": ["model.positions=shaw", "model.heads=4", "model.key_heads=2"],
    "t5, geglu": ["model.positions=t5", "model.activation=geglu", "model.encoder_layers=2", "model.decoder_layers=2"],
    "alibi, reglu": ["model.positions=alibi", "model.activation=reglu"],
    "concatenated positions": ["model.merge_positions=concatenate"],
    "no positions": ["model.positions=none", "model.norm=post"],
}
ALL_OPTIONS = list(VARIANTS)
every_variant = pytest.mark.parametrize("name", ALL_OPTIONS)
SENTENCES = [source for _, (source, _) in zip(range(60), builtin.pairs("en", "de", seed=5), strict=False)]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Folders of models that have learned to write something, each trained when it is first asked for."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("export") / "model"
            saccade.train(
                *TINY,
                "model.dropout=0",
                "training.batch_tokens=512",
                "training.learning_rate=0.01",
                "training.max_steps=200",
                "training.validate_every=200",
                *VARIANTS[name],
                out=made[name],
                quiet=True,
            )
        return made[name]

    return folder


def engine_of(translator, place):
    return CTranslate2Engine(
        place,
        translator.tokenizers,
        translator.never_written,
        translator.own_engine,
        torch.device("cpu"),
    )


@pytest.fixture
def exported(folder_of, tmp_path):
    """Gives a translator with torch and an export of it, loaded."""

    def make(name: str, quantization: str = "float32", flat: float = 1.0):
        """`flat`: how much less sure of its words the model is made."""
        translator = saccade.load(folder_of(name), engine="torch")
        if flat != 1:
            translator.model.decoder.norm.weight.data.mul_(flat)
        place = tmp_path / quantization
        to_ctranslate2.write(translator.model, translator.tokenizers, place, quantization)
        return translator, engine_of(translator, place)

    return make


def encoded(translator):
    return translator.tokenizers.source.encode_batch(SENTENCES)


@every_variant
def test_ctranslate2_gives_every_token_the_models_own_probability(name, exported):
    translator, engine = exported(name)
    sources = encoded(translator)
    long = [sources[0] * 6, *sources]  # positions far beyond those of training
    targets = translator.tokenizers.target.encode_batch([*SENTENCES[::-1], SENTENCES[3]])
    own = translator._score(list(zip(long, targets, strict=True)))
    assert engine.score(list(zip(long, targets, strict=True))) == pytest.approx(own, abs=2e-3)


@every_variant
def test_ctranslate2_finds_the_same_tokens_greedy_and_beam(name, exported):
    translator, engine = exported(name)
    sources = encoded(translator)
    greedy, beam = searches(translator.config.search)
    for settings in (greedy, beam):
        agreement = verify(
            translator,
            sources,
            settings,
            lambda jobs, settings: [found[0].tokens if found else None for found in engine.searched(jobs, settings)],
            renormalise=True,
        )
        assert not agreement.different
        assert agreement.equal >= 0.95 * agreement.compared
        assert agreement.compared > 20, "too many came to their limit for this to mean anything"
    found = engine.searched(translator.jobs(sources, greedy), greedy)
    assert len({tuple(hypotheses[0].tokens) for hypotheses in found if hypotheses}) > 8, "they all say the same"


def test_a_length_penalty_does_not_make_an_export_differ(exported):
    translator, engine = exported("pre-norm", flat=0.15)
    settings = translator.config.search.model_copy(update={"length_penalty": 2.0})
    for search in searches(settings):
        agreement = verify(
            translator,
            encoded(translator),
            search,
            lambda jobs, settings: [found[0].tokens if found else None for found in engine.searched(jobs, settings)],
            renormalise=True,
        )
        assert agreement.equal + agreement.tied == agreement.compared > 20


@every_variant
def test_the_engine_answers_as_torch_does_with_the_models_own_scores(name, exported):
    translator, engine = exported(name)
    sources = encoded(translator)
    settings = translator.settings_for(beam=5, n_best=2)
    jobs = translator.jobs(sources, settings)
    torch_found, found = translator.own_engine.search(jobs, settings), engine.search(jobs, settings)
    equal = [a[0].tokens == b[0].tokens for a, b in zip(torch_found, found, strict=True)]
    assert sum(equal) >= 0.95 * len(sources)
    for same, ours, theirs in zip(equal, torch_found, found, strict=True):
        if same:
            assert theirs[0].log_prob == pytest.approx(ours[0].log_prob, abs=1e-3)
            assert theirs[0].score == pytest.approx(ours[0].score, abs=0.05)  # it forbids before its softmax
        assert len(theirs) == 2
        assert theirs[0].score >= theirs[1].score


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("stopping", ["safe", "beam"])
def test_every_length_penalty_ranks_as_ours(alpha, stopping, exported):
    translator, engine = exported("pre-norm")
    sources = encoded(translator)
    settings = translator.settings_for(beam=4, length_penalty=alpha, early_stopping=stopping)
    jobs = translator.jobs(sources, settings)
    ours, theirs = translator.own_engine.search(jobs, settings), engine.search(jobs, settings)
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(ours, theirs, strict=True)) >= 0.95 * len(sources)


def test_a_sentence_that_comes_to_its_limit_ends_as_ours_do(exported):
    translator, engine = exported("pre-norm")
    sources = encoded(translator)
    settings = translator.settings_for(beam=3, max_length_factor=0.2, max_length_extra=1)
    assert not all(engine.searched(translator.jobs(sources, settings), settings))
    jobs = translator.jobs(sources, settings)
    ours, theirs = translator.own_engine.search(jobs, settings), engine.search(jobs, settings)
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(ours, theirs, strict=True)) >= 0.95 * len(sources)


@every_variant
@pytest.mark.parametrize(
    "rules",
    [
        {"max_length_factor": 0.2, "max_length_extra": 1},
        {"max_length_factor": 0.01, "max_length_extra": 3},
        {"no_repeat_ngram": 3},
        {"no_repeat_ngram": 1, "max_length": 9},
    ],
    ids=str,
)
def test_greedy_search_cuts_and_repeats_no_ngram_without_torch(name, rules, exported, monkeypatch):
    translator, engine = exported(name)
    sources = encoded(translator)
    settings = translator.settings_for(beam=1, **rules)
    assert engine.obstacle(settings) is None
    jobs = translator.jobs(sources, settings)
    ours = translator.own_engine.search(jobs, settings)
    monkeypatch.setattr(engine, "_fallback", None)
    for scored in (True, False):
        theirs = engine.search(jobs, settings, scored=scored)
        equal = [a[0].tokens == b[0].tokens for a, b in zip(ours, theirs, strict=True)]
        assert sum(equal) >= 0.95 * len(sources)  # in float32 a tie may fall either way
        for same, (our,), (their,), job in zip(equal, ours, theirs, jobs, strict=True):
            assert len(their.tokens) < job.limit
            if same and (scored or len(our.tokens) == job.limit - 1):
                assert their.log_prob == pytest.approx(our.log_prob, abs=2e-3)
    if "no_repeat_ngram" in rules:
        free = translator.own_engine.search(jobs, settings.model_copy(update={"no_repeat_ngram": 0}))
        assert [a[0].tokens for a in free] != [a[0].tokens for a in ours], "nobody repeated anything"
    else:
        assert any(len(found[0].tokens) == job.limit - 1 for found, job in zip(ours, jobs, strict=True))


def test_what_the_guard_decodes_again_the_engine_does_where_it_can(exported, monkeypatch):
    translator, engine = exported("pre-norm")
    monkeypatch.setattr(translator, "engine", engine)
    asked = []
    for one in (engine, translator.own_engine):
        search = one.search
        monkeypatch.setattr(
            one,
            "search",
            lambda *given, name=one.name, search=search, **how: asked.append(name) or search(*given, **how),
        )
    monkeypatch.setattr("saccade.generation.guard.examine", lambda *seen: Finding("said so", 5))
    translator.translate(SENTENCES[:3], beam=1)
    assert asked == ["ctranslate2", "ctranslate2"]
    asked.clear()
    translator.translate(SENTENCES[:3], beam=2)
    assert asked == ["ctranslate2", "torch"]


def test_a_sentence_beyond_the_exports_positions_goes_to_torch(exported, monkeypatch):
    translator, engine = exported("pre-norm")
    monkeypatch.setattr("saccade.engines.ctranslate2.POSITIONS", 30)
    sources = encoded(translator)
    settings = translator.settings_for(beam=1)
    jobs = translator.jobs(sources, settings)
    done = engine.searched(jobs, settings)
    assert any(done)
    assert not all(done)
    assert all(engine.search(jobs, settings))


@pytest.mark.parametrize("quantization", ["int8", "int16", "bfloat16"])
def test_quantization_leaves_the_live_weights_as_they_were(quantization, exported, tmp_path):
    translator = exported("pre-norm")[0]
    before = {name: tensor.clone() for name, tensor in translator.model.state_dict().items()}
    to_ctranslate2.write(translator.model, translator.tokenizers, tmp_path / "again", quantization)
    assert all(torch.equal(tensor, before[name]) for name, tensor in translator.model.state_dict().items())
    settings = translator.settings_for(beam=1)
    jobs = translator.jobs(encoded(translator), settings)
    expected = translator.own_engine.search(jobs, settings)
    found = engine_of(translator, tmp_path / "again").search(jobs, settings)
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(expected, found, strict=True)) > len(found) / 2


def test_export_verifies_and_both_engines_translate_alike(trained, command: Command, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    (tmp_path / "in.en").write_text("".join(line + "\n" for line in SENTENCES))
    done = command("export", folder, "--to", "ctranslate2")
    assert done.status == 0, done.err
    assert "verified greedy: " in done.err
    record = json.loads((folder / "ctranslate2" / "export.json").read_text())
    assert [found["search"] for found in record["verified"]] == ["greedy", "beam 5"]
    assert not any(found["different"] for found in record["verified"])
    assert record["equal_as_set"] > 0.9
    outputs = {}
    for engine in ("auto", "torch", "ctranslate2"):
        outputs[engine] = command("translate", folder, "--input", tmp_path / "in.en", "--engine", engine).out
    same = [a == b for a, b in zip(outputs["torch"].split("\n"), outputs["ctranslate2"].split("\n"), strict=True)]
    assert sum(same) >= 0.95 * len(same)
    assert outputs["auto"] == outputs["ctranslate2"]
    scored = command(
        "evaluate", folder, "--source", tmp_path / "in.en", "--reference", tmp_path / "in.en", "--engine", "ctranslate2"
    )
    assert "BLEU" in scored.out


def test_quantized_exports_say_how_much_they_differ_and_replace_the_old_one(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    for quantization in ("float32", "int8"):
        assert export(folder, "ctranslate2", quantization=quantization) == folder / "ctranslate2"
        record = json.loads((folder / "ctranslate2" / "export.json").read_text())
        assert record["quantization"] == quantization
        assert abs(record["bleu"] - record["bleu_torch"]) < 20
    assert not list(folder.glob(".*.partial"))


def test_an_export_that_says_something_else_is_refused_and_leaves_nothing(trained, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    honest = to_ctranslate2.specification

    def damaged(weights):
        table = weights.decoder.table.copy()
        table[4:] = table[4:][::-1]
        return honest(weights._replace(decoder=weights.decoder._replace(table=table)))

    monkeypatch.setattr(to_ctranslate2, "specification", damaged)
    with pytest.raises(SaccadeError, match=r"differs from the model \(greedy: .* nothing was written"):
        export(folder, "ctranslate2")
    assert not (folder / "ctranslate2").exists()
    assert not list(folder.glob(".*.partial"))


def test_an_export_of_other_weights_is_not_used(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    export(folder, "ctranslate2")
    assert saccade.load(folder).engine.name == "ctranslate2"
    shutil.rmtree(folder / "resume")
    translator = saccade.load(folder, engine="torch")
    with torch.no_grad():
        next(translator.model.parameters()).add_(0.1)
    from saccade.training.checkpoint import save_weights, weights_of

    save_weights(weights_of(translator.model), folder / "model.safetensors")
    stale = saccade.load(folder)
    assert stale.engine.name == "torch"
    assert "was made of other weights" in (stale.engine_note() or "")
    assert saccade.load(folder, engine="torch").engine_note() is None
    with pytest.raises(SaccadeError, match=r"was made of other weights .* saccade export"):
        saccade.load(folder, engine="ctranslate2")
    with pytest.raises(SaccadeError, match=r"no validation set .* --verify FILE"):
        export(folder, "ctranslate2")
    (tmp_path / "in.en").write_text("\n".join(SENTENCES[:10]) + "\n")
    export(folder, "ctranslate2", verify_with=str(tmp_path / "in.en"))
    assert saccade.load(folder).engine.name == "ctranslate2"


def test_the_torch_model_is_loaded_only_when_something_needs_it(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    export(folder, "ctranslate2")
    translator = saccade.load(folder, engine="ctranslate2")
    translation = translator.translate("January 5, 2021", protect=[], guard=False)
    assert "model" not in vars(translator)
    expected = saccade.load(folder, engine="torch").translate("January 5, 2021", protect=[], guard=False)
    assert translation.text == expected.text
    assert translation.alignment == expected.alignment
    own = translator._score([(translator.tokenizers.source.encode("January 5, 2021"), translation._ids)])
    assert own == pytest.approx([translation.score], abs=1e-3)


def test_settings_that_the_engine_cannot_do_are_refused_if_asked_for_and_left_to_torch_if_not(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    export(folder, "ctranslate2")
    covered = {"coverage_penalty": 0.2, "beam": 2}
    expected = saccade.load(folder, engine="torch").translate("January 5, 2021", **covered).text
    assert saccade.load(folder).translate("January 5, 2021", **covered).text == expected
    asked_for = saccade.load(folder, engine="ctranslate2")
    with pytest.raises(SaccadeError, match=r"search.coverage_penalty=0.2: .* use --engine torch"):
        asked_for.translate("January 5, 2021", **covered)
    with pytest.raises(SaccadeError, match=r"search.length_penalty=1.5 with search.early_stopping=safe: "):
        asked_for.translate("January 5, 2021", length_penalty=1.5)


def test_what_a_sentence_is_told_is_done_by_torch_and_what_comes_after_the_search_by_either(trained, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    export(folder, "ctranslate2")
    fast, slow = (saccade.load(folder, engine=engine) for engine in ("ctranslate2", "torch"))
    texts = SENTENCES[:12]
    for told in (
        {"prefix": [*["vor"] * 4, *[""] * 8]},
        {"must": [["Jahr"], *[[]] * 11]},
        {"mbr": 3},
        {"max_length": 9},
    ):
        ours, theirs = (each.translate(texts, beam=3, **told) for each in (slow, fast))
        assert sum(a.text == b.text for a, b in zip(ours, theirs, strict=True)) >= 11
        assert [a.notes for a in ours] == [b.notes for b in theirs]
    with pytest.raises(SaccadeError, match=r"search.banned=.*the engine ctranslate2 cannot do that"):
        fast.translate(texts, banned=["Mai"])
    with pytest.raises(SaccadeError, match="--engine ctranslate2 runs one model, not an ensemble"):
        saccade.load([folder, folder], engine="ctranslate2")


def test_what_cannot_be_exported_is_said_when_training_starts_and_refused_by_name(command: Command, tmp_path):
    settings = [*TINY, "training.max_steps=2", "training.validate_every=2", "model.residual=false"]
    done = command("train", "--out", tmp_path / "model", *settings)
    assert done.status == 0, done.err
    assert "cannot be exported to CTranslate2: model.residual=false\n" in done.err
    done = command("export", tmp_path / "model", "--to", "ctranslate2")
    assert done.status == 2
    assert "cannot be exported to CTranslate2: model.residual=false" in done.err


@pytest.mark.parametrize(
    ("settings", "to", "expected"),
    [
        (["model.family=rnn"], "ctranslate2", ["family=rnn"]),
        (["model.wiring=causal"], "ctranslate2", ["wiring=causal"]),
        (["model.positions=shaw"], "ctranslate2", []),
        (["model.activation=geglu", "model.positions=t5"], "huggingface", ["activation=geglu", "positions=t5"]),
        (["model.positions=learned", "model.norm=post"], "huggingface", ["positions=learned", "norm=post"]),
        (["model.normalisation=rms"], "huggingface", ["normalisation=rms"]),
        (["model.residual=false"], "onnx", []),
    ],
)
def test_obstacles_are_settings_by_name(settings, to, expected):
    config = Config.load(None, settings)
    assert fit.obstacles(with_shape(config.model, joint=True), to) == [f"model.{setting}" for setting in expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "marian"], "--to marian is not known; use ctranslate2"),
        (["--to", "ctranslate2", "--quantization", "int4"], "--quantization int4 is not known; use float32"),
        (["--to", "onnx", "--quantization", "int8"], "--quantization int8 is for --to ctranslate2"),
        (["--to", "ctranslate2", "--out", "OCCUPIED"], "is there already, and is not an export"),
    ],
)
def test_a_mistake_is_said_in_words(arguments, message, trained, command: Command, tmp_path):
    (tmp_path / "occupied").mkdir()
    done = command("export", trained, *(str(tmp_path / "occupied") if a == "OCCUPIED" else a for a in arguments))
    assert done.status == 2
    assert message in done.err


def test_engines_that_are_not_there_are_named(trained, monkeypatch, tmp_path):
    with pytest.raises(SaccadeError, match="--engine marian is not known; use auto, torch, ctranslate2"):
        saccade.load(trained, engine="marian")
    with pytest.raises(SaccadeError, match="holds no export for CTranslate2; make it with: saccade export"):
        saccade.load(trained, engine="ctranslate2")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(SaccadeError, match=r"not installed; install it with: pip install 'saccade\[export\]'"):
        export(trained, "ctranslate2", tmp_path / "out")


HUGGINGFACE: dict[str, tuple[str, list[str]]] = {
    "post-norm": ("MarianMTModel", ["model.norm=post", "model.key_heads=1"]),
    "post-norm, untied, gelu": ("MarianMTModel", VARIANTS["post-norm, untied, gelu"]),
    "deepnorm, silu": ("MarianMTModel", VARIANTS["deepnorm, silu"]),
    "post-norm, two vocabularies": ("MarianMTModel", ["model.norm=post", "tokenizer.joint=false"]),
    "pre-norm": ("PegasusForConditionalGeneration", VARIANTS["pre-norm"]),
    "pre-norm, two vocabularies": ("PegasusForConditionalGeneration", ["tokenizer.joint=false"]),
    "learned positions": ("BlenderbotForConditionalGeneration", ["model.positions=learned"]),
}
for _name, (_, _settings) in HUGGINGFACE.items():
    VARIANTS.setdefault(_name, _settings)


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_transformers_loads_the_folder_and_generates_the_same_tokens(name, folder_of, tmp_path):
    import transformers

    folder, place = folder_of(name), tmp_path / "out"
    (tmp_path / "in.en").write_text("\n".join(SENTENCES) + "\n")
    export(folder, "huggingface", out=place, verify_with=str(tmp_path / "in.en"))
    record = json.loads((place / "export.json").read_text())
    for found in record["verified"]:
        assert found["different"] == 0
        assert found["equal"] > 20

    architecture = getattr(transformers, HUGGINGFACE[name][0])
    model, report = architecture.from_pretrained(place, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    reader = transformers.AutoTokenizer.from_pretrained(place / "target") if (place / "target").exists() else tokenizer
    translator = saccade.load(folder, engine="torch")
    said = []
    for text in SENTENCES[:20]:
        made = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=1, max_length=60)
        said.append(reader.decode(made[0], skip_special_tokens=True))
    expected = [found.text for found in translator.translate(SENTENCES[:20], beam=1, guard=False, protect=[])]
    short = [i for i, text in enumerate(expected) if len(translator.tokenizers.target.encode(text)) < 20]
    assert len(short) > 5
    assert [said[i] for i in short] == [expected[i] for i in short]


def test_without_transformers_the_folder_is_written_and_not_called_verified(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    place = export(trained, "huggingface", out=tmp_path / "out")
    assert json.loads((place / "export.json").read_text())["verified"] == []
    assert "not verified: transformers is not installed" in capsys.readouterr().err


# Each takes seconds to trace, so only one of those that are traced alike.
TRACED = ["concatenated positions", "learned positions, two vocabularies", "rotary, rms, swiglu, multi-query"]
TRACED += ["shaw, grouped-query", "t5, geglu"]


@pytest.mark.parametrize("name", TRACED)
def test_onnxruntime_writes_the_same_tokens(name, folder_of, tmp_path):
    (tmp_path / "in.en").write_text("\n".join(SENTENCES) + "\n")
    place = export(folder_of(name), "onnx", out=tmp_path / "out", verify_with=str(tmp_path / "in.en"))
    (found,) = json.loads((place / "export.json").read_text())["verified"]
    assert found["search"] == "greedy"
    assert found["different"] == 0
    assert found["equal"] > 20
    assert {path.name for path in place.iterdir()} >= {"encoder.onnx", "decoder.onnx", "export.json"}


def test_a_missing_onnxruntime_is_named_with_the_remedy(trained, tmp_path, monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    with pytest.raises(SaccadeError, match=r"onnxruntime is not installed; .* pip install 'saccade\[export\]'"):
        export(trained, "onnx", out=tmp_path / "out")
