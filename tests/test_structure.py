"""The shape of the house: where a thing may be asked, and how large a room may grow."""

import ast
from collections.abc import Iterator
from pathlib import Path

import saccade

ROOT = Path(saccade.__file__).parent
# What other programs can hold depends on the model, and a recipe's settings are those of its family.
MAY_ASK = ("models/build/", "export/fit.py", "config/")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def asks_for_a_model(node: ast.AST) -> bool:
    """`if model.family == …`, `if isinstance(model, RNNConfig)`, `if type(model) is TransformerDecoder`."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        names = [side.attr for side in sides if isinstance(side, ast.Attribute)]
        return any(name in ("family", "wiring") for name in names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        kinds = ast.unparse(node.args[1]).replace("(", " ").replace(")", " ").replace(",", " ").split()
        return any(kind.endswith(("Config", "Decoder", "Encoder")) and kind != "EncoderDecoder" for kind in kinds)
    return False


def conditions(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.comprehension):
            tests = node.ifs if isinstance(node, ast.comprehension) else [node.test]
            for test in tests:
                yield from ast.walk(test)


def test_nobody_asks_which_model_it_is_but_what_builds_models():
    asking = [
        f"{name}:{node.lineno} {ast.unparse(node)}"  # type: ignore[attr-defined]
        for name, tree in modules()
        if not name.startswith(MAY_ASK)
        for node in conditions(tree)
        if asks_for_a_model(node)
    ]
    assert asking == []


def test_the_question_is_found_where_it_is_asked():
    for line in (
        "if model.family == 'rnn': pass",
        "x = 1 if config.wiring != 'causal' else 2",
        "if isinstance(model, RNNConfig): pass",
        "while isinstance(layer, (A, TransformerDecoder)): pass",
    ):
        assert any(asks_for_a_model(node) for node in conditions(ast.parse(line))), line
    assert not any(asks_for_a_model(node) for node in conditions(ast.parse("if state.size == 1: pass")))
