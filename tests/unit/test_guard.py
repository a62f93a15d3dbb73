"""What is lent to methods and metrics stays as it was, or the culprit is named and nothing of his is stored."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from salrun.config.catalogue import load_file, target_of
from salrun.errors import SalrunError
from salrun.pipeline.guard import Guard, checksum
from salrun.surroundings import Surroundings
from tests import spoilers
from tests.toys import classifier, images, targets
from tests.unit.test_pipeline import run


def settled(words: dict[str, str]) -> list[tuple[str, str, type]]:
    kinds = {"".join(part.title() for part in name.split("_")): (name, told) for name, told in words.items()}
    return [(name, told, getattr(spoilers, kind)) for kind, (name, told) in kinds.items()]


@pytest.mark.parametrize(("name", "told", "kind"), settled(spoilers.METHODS))
def test_a_method_that_spoils_is_named(name: str, told: str, kind: type) -> None:
    guard, model, x, target = Guard(), classifier(), images(), targets()
    guard.keep_model("model", model)
    guard.lend("its images", "model", lambda: (x, target))
    dtype = torch.get_default_dtype()
    try:
        with pytest.raises(SalrunError, match=f"^method '{name}' (changes|replaces) (its )?{told}"):  # noqa: SIM117
            with guard.call(f"method '{name}'", True, "model", x.detach()):
                kind()(model, x.detach(), target, None, None)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.backends.mkldnn.enabled = True
        torch.nn.modules.module._global_forward_hooks.clear()


def test_what_a_file_replaces_as_it_is_imported_is_put_back(tmp_path: Path) -> None:
    file = tmp_path / "replacing.py"
    file.write_text("import torch\ntorch.nn.functional.relu = lambda given: given\n")
    kept = torch.nn.functional.relu
    with pytest.raises(SalrunError, match=r"replacing\.py .* it replaces torch\.nn\.functional\.relu"):
        load_file(file)
    assert torch.nn.functional.relu is kept


def test_a_part_that_lets_torch_transform_replaces_nothing() -> None:
    around = Surroundings()
    torch.func.vmap(torch.func.grad(lambda given: given * given))(torch.ones(2))
    torch.compile(lambda given: given + 1, backend="eager")(torch.ones(2))
    torch.fx.symbolic_trace(torch.nn.ReLU())
    assert around.mend() == ""


def test_the_outer_culprit_is_named_by_an_inner_call() -> None:
    guard, x = Guard(), images()
    guard.lend("its images", "model", lambda: (x,))

    def inner() -> None:
        with guard.call("metric 'outer'", False, "model"):
            x.zero_()
            with guard.call("method 'inner'", False, "model"):
                pass

    with pytest.raises(SalrunError, match="^metric 'outer' changes its images"):
        inner()


@pytest.mark.parametrize("role", ["model", "other"])
def test_a_users_part_is_held_to_every_model_ours_to_the_one_at_work(role: str) -> None:
    guard, x = Guard(), images()
    guard.lend("its images", role, lambda: (x,))
    with pytest.raises(SalrunError), guard.call("method 'users'", True, "model"):
        x.zero_()
    guard.close()
    guard.lend("its images", role, lambda: (x,))
    with pytest.raises(SalrunError) if role == "model" else nullcontext(), guard.call("method 'ours'", False, "model"):
        x.zero_()


def test_what_stays_as_it_was_passes_and_a_closed_tile_is_forgotten() -> None:
    guard, x, model = Guard(), images(), classifier()
    guard.keep_model("model", model)
    guard.lend("its images", "model", lambda: (x,))
    with guard.call("method 'gradient_left_there'", True, "model", x):
        spoilers.GradientLeftThere()(model, x.detach(), targets(), None, None)
    assert not x.requires_grad and x.grad is None
    guard.close()
    with guard.call("method 'a'", True, "model"):
        x.zero_()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7, 11), (64, 64, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64, torch.complex64])
def test_a_checksum_sees_numbers_and_their_places(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    whole = torch.rand(1 + torch.Size(shape).numel()).to(dtype)
    tensor = whole[1:].view(shape)  # at an odd place in memory
    if tensor.numel():
        before = checksum(tensor)
        assert torch.equal(before, checksum(tensor.clone()))
        tensor.data.view(-1)[-1] = 7 if dtype is not torch.bool else not tensor.data.view(-1)[-1]
        assert not torch.equal(before, checksum(tensor))
    if len(shape) == 3 and dtype is torch.float32:
        assert not torch.equal(checksum(tensor), checksum(tensor.flip(0)))


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("methods", "SpoilsImagesUnseen"), ("methods", "SpoilsClasses")),
        *(("metrics", "SpoilsModelOfScene"), ("metrics", "SpoilsMasks")),
    ],
)
def test_a_run_with_a_spoiler_stores_nothing_wrong(group: str, name: str, tmp_path: Path) -> None:
    plain = ["report=false", "methods=[edge]", "metrics=[insertion]", "metrics.insertion.step=512", "~others"]
    later = "+methods.later={_target_: salrun.methods.gradient.Gradient, view: max_abs}"
    spoiler = f"+{group}.a={{_target_: {target_of(getattr(spoilers, name))}, view: max_abs}}"
    with pytest.raises(SalrunError, match=rf"^{group[:-1]} 'a' (changes|replaces) "):
        run(tmp_path / "spoilt", *plain, spoiler, later)
    after, clean = (run(tmp_path / folder / "run", *plain, later) for folder in (".", "elsewhere"))
    assert after.scores.equals(clean.scores)
