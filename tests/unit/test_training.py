"""Training: losses, resumption, gates, checkpoints that are refused."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from salrun.errors import SalrunError
from salrun.models import checkpoint
from salrun.models.architectures import smerf_cnn
from salrun.models.recipe import Recipe
from salrun.models.training import Precision, Training, attack, fit, glorot, loss_of, pgd_attack
from salrun.models.verification import Verification, verify
from salrun.rng import generator
from salrun.store.entries import Store
from tests.unit.test_textbox import textbox

CPU = torch.device("cpu")


def tiny() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(900, 2))


def test_architectures() -> None:
    simple, hard = smerf_cnn("simple"), smerf_cnn("complex")
    assert sum(p.numel() for p in simple.parameters()) == 684122
    x = torch.zeros(1, 3, 64, 64)
    assert hard[: list(dict(hard.named_children())).index("flatten")](x).shape == (1, 64, 3, 3)
    glorot(simple, generator(0, "init/0"))
    limit = (6 / (3 * 9 + 32 * 9)) ** 0.5
    assert simple.conv1.weight.abs().max() <= limit and simple.conv1.weight.std().item() == pytest.approx(
        limit / 3**0.5, rel=0.1
    )
    assert not any(p.any() for n, p in simple.named_parameters() if n.endswith("bias"))


def test_the_clipped_loss_has_no_gradient_outside_of_its_range() -> None:
    logits = torch.tensor([[1.5, -0.5], [0.3, 0.6]], requires_grad=True)
    loss = loss_of("keras_clipped", logits, torch.tensor([0, 1]))
    inside = -(torch.log(torch.tensor(0.7)) + torch.log(torch.tensor(0.6))) / 2
    assert loss.item() == pytest.approx(inside.item() / 2, abs=1e-5)
    loss.backward()
    assert not logits.grad[0].any() and logits.grad[1].all()
    dead = loss_of("keras_clipped", torch.tensor([[-1.0, -1.0]]), torch.tensor([0]))
    assert dead.item() == pytest.approx(16.118 / 2, abs=1e-2)


def test_pgd_stays_in_its_ball_and_raises_the_loss() -> None:
    torch.manual_seed(0)
    model = tiny().eval()
    x, y = torch.rand(6, 3, 64, 64), torch.tensor([0, 1] * 3)
    adversary = pgd_attack(model, x, y, "cross_entropy", torch.rand(x.shape), 0.3, 0.1, 5)
    assert (adversary - x).abs().max() <= 0.3 + 1e-6 and 0 <= adversary.min() and adversary.max() <= 1
    assert loss_of("cross_entropy", model(adversary), y) > loss_of("cross_entropy", model(x), y)


def test_the_attack_grows_to_its_full_size() -> None:
    spec = {"eps": 0.3, "step": 0.1, "iterations": 10, "ramp": 0.5}
    assert attack(spec, 0.1) == {"eps": pytest.approx(0.06), "step": pytest.approx(0.02), "iterations": 10}
    assert attack(spec, 0.5) == attack(spec, 0.9) == attack(spec) == {"eps": 0.3, "step": 0.1, "iterations": 10}
    assert attack({**spec, "ramp": 0.0}, 0.1)["eps"] == 0.3


class Interrupted(Exception):
    pass


def test_a_stopped_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    data = textbox("simple_fr", train_per_bucket=20)
    how = Training(lr=1e-3, epochs=3, batch=32, schedule="one_cycle", augment="flip_shift", patience=5)

    def start() -> nn.Module:
        torch.manual_seed(0)
        return tiny()

    whole = start()
    fit(whole, data, how, 0, CPU)
    beats = iter(range(10**6))

    def stop() -> None:
        if next(beats) == 19:  # in the third epoch
            raise Interrupted

    state = tmp_path / "state"
    broken = start()
    with pytest.raises(Interrupted):
        fit(broken, data, how, 0, CPU, state, beat=stop)
    resumed = start()
    history = fit(resumed, data, how, 0, CPU, state)
    assert [e["epoch"] for e in history.epochs] == [0, 1, 2]
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_what_another_recipe_left_is_not_gone_on_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, state = textbox("simple_fr", train_per_bucket=20), tmp_path / "state"
    fit(tiny(), data, Training(lr=1e-3, epochs=3, batch=32), 0, CPU, state)
    history = fit(tiny(), data, Training(lr=2e-3, epochs=2, batch=32), 0, CPU, state)
    assert [e["epoch"] for e in history.epochs] == [0, 1]
    assert "is of another recipe, seed or data: starting anew" in caplog.text


def test_a_clipped_gradient_moves_the_weights_no_further() -> None:
    data, model = textbox("simple_fr", train_per_bucket=4), tiny()
    before = [p.clone() for p in model.parameters()]
    fit(model, data, Training(lr=1e-3, epochs=1, batch=16, clip_norm=1e-13), 0, CPU)  # far below Adam's epsilon
    moved = max((a - b).abs().max().item() for a, b in zip(before, model.parameters(), strict=True))
    assert 0 <= moved < 1e-6


def test_a_recipe_may_change_for_the_clipped_loss() -> None:
    recipes = {"fast": {"lr": 1e-3, "epochs": 3}, "fast_clipped": {"clip_norm": 1.0}}
    assert recipe(recipes=recipes).how().clip_norm is None
    clipped = recipe(recipes=recipes, loss="keras_clipped").how()
    assert (clipped.lr, clipped.clip_norm, clipped.loss) == (1e-3, 1.0, "keras_clipped")


def test_half_precision_is_of_the_passes_alone() -> None:
    data = textbox("simple_fr", train_per_bucket=20)

    def trained(precision: Precision) -> tuple[list[torch.dtype], torch.Tensor]:
        torch.manual_seed(0)
        model, seen = tiny(), []
        handle = model[0].register_forward_hook(lambda layer, given, output: seen.append(output.dtype))
        fit(model, data, Training(lr=1e-4, epochs=1, batch=32, precision=precision), 0, CPU)
        handle.remove()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        return sorted(set(seen), key=str), torch.cat([p.detach().flatten() for p in model.parameters()])

    (full, exact), (half, rounded) = trained("float32"), trained("bfloat16")
    assert full == [torch.float32] and half == [torch.bfloat16]
    assert not torch.equal(exact, rounded) and (exact - rounded).abs().max() < 1e-3


def test_without_dropout_only_dropout_is_off() -> None:
    data = textbox("simple_fr", train_per_bucket=10)

    def trained(rate: float, dropout: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(rate))
        model.append(nn.Linear(256, 2))
        fit(model, data, Training(epochs=1, batch=32, dropout=dropout), 0, CPU)
        return model.state_dict()

    off, never, on = trained(0.9, False), trained(0.0, True), trained(0.9, True)
    assert all(torch.equal(off[k], never[k]) for k in off)
    assert not torch.equal(off["4.weight"], on["4.weight"])
    assert off["1.num_batches_tracked"] > 0


def recipe(**changes) -> Recipe:
    spec = {
        "name": "tiny",
        "arch": tiny,
        "recipes": {"fast": {"lr": 2e-3, "epochs": 3, "batch": 32, "optimizer": "adamw"}},
        "gate": {"accuracy": 0.6},
        "layers": {"cam": "1"},
    }
    return Recipe(**{**spec, **changes})


def test_a_recipe_trains_once_and_remembers(tmp_path: Path) -> None:
    data, store = textbox("simple_fr", train_per_bucket=40), Store(tmp_path)
    first = recipe().obtain(data, 0, store, CPU)
    assert first.source == "trained" and first.verification.accuracy > 0.6
    (published,) = (p for p in (tmp_path / "model").rglob("*.safetensors"))
    before = published.stat()
    second = recipe().obtain(data, 0, store, CPU)
    assert second.source == "trained" and published.stat().st_mtime_ns == before.st_mtime_ns
    assert first.classifier.fingerprint == second.classifier.fingerprint
    assert recipe().obtain(data, 1, store, CPU).classifier.fingerprint != first.classifier.fingerprint
    (path,) = [
        p
        for p in (tmp_path / "model").rglob("*.safetensors")
        if json.loads(p.with_suffix(".json").read_text())["identity"]["seed"] == 0
    ]
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["verification"]["accuracy"] == pytest.approx(first.verification.accuracy, abs=1e-4)
    assert not list(tmp_path.rglob("*.state"))
    with pytest.raises(SalrunError, match="fails verification.*accept_unverified"):
        recipe(gate={"accuracy": 1.01}).obtain(data, 0, store, CPU)
    accepted = recipe(gate={"accuracy": 1.01}, accept_unverified=True).obtain(data, 0, store, CPU)
    assert any("UNVERIFIED" in d for d in accepted.deviations)
    data_bytes = bytearray(path.read_bytes())
    data_bytes[-5] ^= 1
    path.write_bytes(data_bytes)
    with pytest.raises(SalrunError, match="sha256.*train anew"):
        recipe().obtain(data, 0, store, CPU)


def test_adversarial_training_goes_on_from_the_plain_model(tmp_path: Path) -> None:
    data, store = textbox("simple_fr", train_per_bucket=40), Store(tmp_path)
    against = {"lr": 1e-3, "epochs": 1, "batch": 32, "pgd": {"eps": 0.1, "step": 0.05, "iterations": 2}}
    recipes = {"fast": {"lr": 2e-3, "epochs": 3, "batch": 32, "optimizer": "adamw"}, "fast_pgd": against}
    plain = recipe(recipes=recipes).obtain(data, 0, store, CPU)
    robust = recipe(recipes=recipes, training="pgd", accept_unverified=True).obtain(data, 0, store, CPU)
    assert (robust.source, robust.classifier.name) == ("trained", "tiny_pgd")
    assert 0 <= robust.card["pgd_accuracy"] <= 1 and len(robust.card["history"]) == 1
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(plain.classifier.parameters(), robust.classifier.parameters(), strict=True)
    ]
    assert 0 < max(moved) < 0.1  # a few small steps away from the plain weights


def test_what_the_networks_description_does_not_show_tells_stored_models_apart() -> None:
    data = textbox("simple_fr")

    def key(weights: str, learns: list[str]) -> str:
        given = recipe(arch=partial(lambda weights, learns: tiny(), weights=weights, learns=learns))
        return given._key(given.identity(data, 0), data)

    assert key("/a/w.pth", ["4"]) == key("/b/w.pth", ["4"])  # wherever the file is
    assert len({key("/a/w.pth", ["4"]), key("/a/w.pth", ["0", "4"]), key("/a/other.pth", ["4"])}) == 3


@pytest.mark.parametrize(("what", "known"), [("loss", "keras_clipped"), ("init", "glorot"), ("training", "none")])
def test_unknown_choices_are_refused_before_any_work(what: str, known: str) -> None:
    with pytest.raises(SalrunError, match=f"unknown {what} 'mine' in model.{what}.*{known}"):
        recipe(**{what: "mine"})


def test_verification_names_what_fails() -> None:
    check = Verification(
        "validation",
        0.97,
        {"1": 1.0, "9": 0.85},
        {"1-7": 0.9, "2-8": 0.92},
        {"accuracy": 0.98, "group": 0.9, "flips": 0.95},
    )
    assert not check.passed
    assert (
        check.reason == "validation accuracy 0.970 < 0.98, accuracy in group 9 0.850 < 0.9, paired flips 0.910 < 0.95"
    )


class Box1(nn.Module):
    """Right by construction: a window mean of 1 over 10x10 pixels means Box1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.avg_pool2d(x, 10, stride=1).flatten(1).amax(1)
        return torch.stack([1 - seen, seen - 0.95], 1)


def test_a_model_that_reasons_rightly_passes_and_a_blind_one_does_not() -> None:
    data = textbox("simple_fr")
    gate = {"accuracy": 0.98, "group": 0.9, "flips": 0.95, "images": 600}
    good = verify(Box1(), data, gate, CPU)
    assert good.passed and good.flip_rate == 1.0 and set(good.groups) == set(data.rules)

    class Blind(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 2)

    assert verify(Blind(), data, gate, CPU).accuracy == 0.5


def test_checkpoints_that_are_refused(tmp_path: Path) -> None:
    module = smerf_cnn("simple")
    path = tmp_path / "m.safetensors"
    checkpoint.round_half(module)
    checkpoint.save_checkpoint(path, module, {"recipe": "fast"})
    again = smerf_cnn("simple")
    assert checkpoint.load_checkpoint(path, again)["recipe"] == "fast"
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), again.state_dict().values(), strict=True)
    )
    with pytest.raises(SalrunError, match="another architecture"):
        checkpoint.load_checkpoint(path, smerf_cnn("complex"))
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(SalrunError, match="sha256"):
        checkpoint.load_checkpoint(path, again)
    path.write_bytes(pickle.dumps({"weight": 1}))
    with pytest.raises(SalrunError, match="not a safetensors file"):
        checkpoint.load_checkpoint(path, again)
    path.write_bytes(good)
    path.with_suffix(".json").unlink()
    with pytest.raises(SalrunError, match="no card"):
        checkpoint.load_checkpoint(path, again)
    with pytest.raises(SalrunError, match=r"cannot read .*none\.safetensors: No such file"):
        checkpoint.load_checkpoint(tmp_path / "none.safetensors", again)


@pytest.mark.parametrize("recipes", [{"fast": {}}, {"fast": {}, "paper": {}}], ids=["without", "with"])
def test_the_papers_recipe_is_recommended_only_where_there_is_one(recipes: dict[str, dict]) -> None:
    recipe = Recipe("tiny", tiny, recipes)
    (told,) = recipe._deviations({"recipe": "fast"}, "trained", textbox())
    assert told.startswith("training recipe 'fast', not the paper's")
    assert ("model.recipe=paper" in told) == ("paper" in recipes)
