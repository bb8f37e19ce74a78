"""Products over a few rows by what this machine compiles: what torch gives, and nothing lost where it cannot be had."""

import pytest
import torch
import torch.nn.functional as F

from saccade.models import few_rows as room
from saccade.models import packing
from saccade.models.few_rows import MOST, Panels, compiled, few_rows


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A machine on which nothing was compiled yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled.cache_clear()
    yield tmp_path
    compiled.cache_clear()


needed = pytest.mark.skipif(compiled() is None, reason="no C compiler here, or a processor that is left alone")


@needed
@pytest.mark.parametrize("rows", range(1, MOST + 1))
@pytest.mark.parametrize(("width", "out"), [(1, 1), (7, 31), (16, 32), (33, 257), (64, 96), (256, 1000)])
def test_few_rows_are_what_torch_gives(rows, width, out):
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 1, width), torch.randn(out, width), torch.randn(out)
    panels = Panels.of(weight)
    torch.testing.assert_close(few_rows(x, panels, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(few_rows(x, panels, None), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    relu = F.linear(x, weight, bias).relu()
    torch.testing.assert_close(few_rows(x, panels, bias, "relu"), relu, rtol=1e-4, atol=1e-4)
    spread = torch.randn(rows, 2 * width)[:, ::2]  # rows that do not lie in one piece
    torch.testing.assert_close(few_rows(spread, panels, bias), F.linear(spread, weight, bias), rtol=1e-4, atol=1e-4)


@needed
def test_a_rows_answer_is_the_same_bit_for_bit_beside_any_others():
    torch.manual_seed(1)
    x, weight, bias = torch.randn(MOST, 48), torch.randn(300, 48), torch.randn(300)
    panels, threads = Panels.of(weight), torch.get_num_threads()
    together = few_rows(x, panels, bias)
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            for rows in range(1, MOST + 1):
                assert torch.equal(few_rows(x[-rows:].clone(), panels, bias), together[-rows:])
    finally:
        torch.set_num_threads(threads)


@needed
def test_what_is_compiled_once_is_kept(anew, monkeypatch):
    assert compiled() is not None
    assert len(list(anew.glob("saccade/few-rows-*.so"))) == 1
    compiled.cache_clear()
    monkeypatch.setattr(room, "_compile", None)
    assert compiled() is not None


@needed
def test_a_cache_that_cannot_be_written_to_is_done_without(anew):
    (anew / "saccade").write_text("a file where the folder should be")
    assert compiled() is not None


@pytest.mark.parametrize(
    "breaks",
    [
        lambda patch: patch.setattr(room.shutil, "which", lambda name: None),
        lambda patch: patch.setattr(room.shutil, "which", lambda name: "/bin/false"),
        lambda patch: patch.setattr(room.Path, "read_text", lambda path: ""),
        lambda patch: patch.setattr(room.sys, "platform", "darwin"),
        lambda patch: patch.setattr(room, "_product", lambda *parts: torch.zeros(3, 70)),
    ],
    ids=["no compiler", "a compiler that fails", "no OpenMP", "another system", "a wrong answer"],
)
def test_without_it_torch_does_the_work(anew, monkeypatch, breaks):
    with monkeypatch.context() as patch:
        breaks(patch)
        assert compiled() is None
        assert packing.order_for(1) in ("one row", "columns")
        assert packing.order_for(5) in ("packed", "columns")
        holder = torch.nn.Sequential(torch.nn.Linear(8, 40))
        x = torch.randn(5, 8)
        expected = holder(x).detach()
        packing.pack(holder)
        with torch.inference_mode():
            torch.testing.assert_close(holder(x), expected)
            torch.testing.assert_close(holder(x[:1]), expected[:1])
