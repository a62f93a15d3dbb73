"""IBA against an independent run of one image at a time, and each of its formulas against its definition."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from salrun.errors import SalrunError
from salrun.methods.iba import IBA, Adam, blur_matrix, fit_feature_stats, information, information_slope, is_cut
from salrun.methods.layers import layer_output
from salrun.models.classifier import Classifier
from salrun.rng import Draws
from salrun.types import FeatureStats, Fitted

IDS = ("a", "b", "c")


class Residual(nn.Module):
    """The layer sits inside the block, so that a path leads around it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)

    def before(self, x):
        return self.inner(functional.relu(self.stem(x)))

    def after(self, x, features):
        return self.head(functional.relu(features + functional.relu(self.stem(x))).mean((2, 3)))

    def forward(self, x):
        return self.after(x, self.before(x))


class Plain(nn.Sequential):
    """As in VGG: an in-place ReLU right behind the layer, whose features are those before it."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 6, 3, padding=1, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 5, 3),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(5, 5),
        )

    def before(self, x):
        return self[2](self[1](self[0](x)))

    def after(self, x, features):
        for layer in list(self)[3:]:
            features = layer(features)
        return features


def setting(kind=Plain, dtype=torch.float64):
    torch.manual_seed(7)
    module = kind().eval().to(dtype)
    for parameter in module.parameters():
        parameter.data *= 2
    model = Classifier(module, (0.4,) * 3, (0.25,) * 3, {"iba": "2" if kind is Plain else "inner"}).to(dtype)
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(3, 3, 12, 14, generator=generator, dtype=dtype)
    train = torch.rand(40, 3, 12, 14, generator=generator, dtype=dtype)
    stats = fit_feature_stats(model, "iba", train.split(16))
    active = stats.active.clone()
    active[1, 2, 3] = False
    return model, x, torch.tensor([2, 0, 3]), FeatureStats(stats.mean, stats.std, active, stats.n)


def one_image(method, model, x, target, stats, rng):
    """The article's algorithm for a single image, by torch's own Adam, convolution and cross entropy."""
    point = model.normalise(x)
    r = model.module.before(point).detach().clone()
    mean, std, active = stats.mean.to(r), stats.std.to(r).clamp(min=method.min_std), stats.active.to(r)
    offset = torch.arange(-2, 3, dtype=r.dtype)
    square = torch.exp(-(offset[:, None] ** 2 + offset**2) / (2 * method.sigma**2))
    kernel = (square / square.sum()).expand(r.shape[1], 1, 5, 5)
    alpha = nn.Parameter(torch.full_like(r, method.initial_alpha))
    optimizer = torch.optim.Adam([alpha], lr=method.lr)
    for step in range(1, method.steps + 1):
        optimizer.zero_grad()
        keep = functional.conv2d(functional.pad(alpha.sigmoid(), (2,) * 4, mode="reflect"), kernel, groups=r.shape[1])
        shape, start = (method.copies, *r.shape[2:], r.shape[1]), step * method.copies * r.numel()
        shared = method.noise == "shared"
        noise = rng.normal("iba", shape, start, shared=True) if shared else rng.normal("iba", shape, start)[0]
        noise = noise.movedim(-1, 1).to(r)
        z = (keep * r + (1 - keep) * (mean + std * noise)) * active
        z = z.clamp(min=0) if method.relu else z
        capacity = kl_divergence(Normal(keep * (r - mean) / std, 1 - keep), Normal(0.0, 1.0)) * active
        logits = model.module.after(point.expand(method.copies, -1, -1, -1), z)
        loss = functional.cross_entropy(logits, target.expand(method.copies)) + method.beta * capacity.mean()
        loss.backward()
        optimizer.step()
    bits = capacity.detach().sum(1, keepdim=True) / math.log(2) * r.shape[2] * r.shape[3] / (x.shape[2] * x.shape[3])
    return functional.interpolate(bits, size=x.shape[2:], mode="bilinear", align_corners=False)


@pytest.mark.parametrize("kind", [Plain, Residual])
@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "shared"}, {"relu": True, "beta": 1.0}, {"steps": 1}, {"steps": 4, "copies": 3, "lr": 0.3}],
)
@pytest.mark.parametrize("chunk", [4, 999])
def test_batched_equals_separate_runs(kind, options, chunk):
    model, x, target, stats = setting(kind)
    method = IBA(**options)
    maps = method(model, x, target, Draws.of(1, IDS), Fitted(feature_stats=stats, chunk=chunk))
    assert maps.shape == (3, 1, 12, 14)
    for b in range(3):
        part = slice(b, b + 1)
        expected = one_image(method, model, x[part], target[part], stats, Draws.of(1, IDS[part]))
        torch.testing.assert_close(maps[part], expected, rtol=1e-8, atol=1e-9)
        assert expected.max() > expected.min() >= 0


def test_both_terms_of_the_loss_move_the_map():
    model, x, target, stats = setting()
    fitted = Fitted(feature_stats=stats)
    free = IBA(beta=0.0)(model, x, target, Draws.of(1, IDS), fitted)
    bound = IBA(beta=10.0)(model, x, target, Draws.of(1, IDS), fitted)
    other = IBA(beta=0.0)(model, x, (target + 1) % 5, Draws.of(1, IDS), fitted)
    assert (bound.sum((1, 2, 3)) < 0.7 * free.sum((1, 2, 3))).all()
    assert ((free - other).abs().flatten(1).amax(1) > 0.05 * free.flatten(1).amax(1)).all()


def test_float32_stays_near_float64():
    model, x, target, stats = setting()
    exact = IBA()(model, x, target, Draws.of(1, IDS), Fitted(feature_stats=stats))
    maps = IBA()(model.float(), x.float(), target, Draws.of(1, IDS), Fitted(feature_stats=stats))
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps.double(), exact, rtol=1e-3, atol=1e-5)


def test_information_is_the_divergence_of_two_normals():
    generator = torch.Generator().manual_seed(0)
    r, mean, keep = (torch.rand(2, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    std = 0.1 + torch.rand(3, 4, 5, generator=generator, dtype=torch.float64)
    passed = Normal(keep * r + (1 - keep) * mean, (1 - keep) * std)
    expected = kl_divergence(passed, Normal(mean, std))
    torch.testing.assert_close(information(keep, (r - mean) / std), expected, rtol=1e-10, atol=1e-12)


def test_a_gate_wide_open_passes_a_finite_amount():
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(
        information(one, one).squeeze(), torch.tensor(-0.5 * (1 + math.log(1e-12) - 1 - 1e-12), dtype=torch.float64)
    )


def test_the_slope_of_the_information_is_its_derivative():
    keep = torch.tensor([0.0, 0.3, 0.9, 1 - 1e-5, 1 - 1e-7, 1.0], dtype=torch.float64, requires_grad=True)
    u = torch.tensor([-2.0, 0.5, 3.0, 1.0, 2.0, 1.5], dtype=torch.float64)
    expected = torch.autograd.grad(information(keep, u).sum(), keep)[0]
    torch.testing.assert_close(information_slope(keep.detach(), u), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("height", "width", "sigma"), [(6, 7, 1.0), (3, 9, 1.0), (8, 8, 1.6), (5, 5, 0.4)])
def test_blur_is_a_gaussian_convolution_with_reflected_borders(height, width, sigma):
    x = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    radius = round(2 * sigma)
    offset = torch.arange(-radius, radius + 1, dtype=torch.float64)
    square = torch.exp(-(offset[:, None] ** 2 + offset**2) / (2 * sigma**2))
    kernel = (square / square.sum()).expand(3, 1, *square.shape)
    expected = functional.conv2d(functional.pad(x, (radius,) * 4, mode="reflect"), kernel, groups=3)
    found = blur_matrix(height, sigma, x) @ x @ blur_matrix(width, sigma, x).T
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    if sigma == 1.0:
        assert len(offset) == 5


def test_adam_equals_torch():
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.rand(4, 5, generator=generator, dtype=torch.float64))
    own, adam = parameter.detach().clone(), Adam(parameter.detach())
    optimizer = torch.optim.Adam([parameter], lr=0.7)
    for step in range(1, 8):
        parameter.grad = torch.randn(4, 5, generator=generator, dtype=torch.float64) * 10.0 ** (step - 4)
        optimizer.step()
        own -= 0.7 * adam.direction(parameter.grad)
    torch.testing.assert_close(own, parameter.detach(), rtol=1e-12, atol=1e-14)


def test_feature_stats_are_those_of_all_images_at_once():
    model, _, _, _ = setting()
    x = torch.rand(37, 3, 12, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    r = model.module.before(model.normalise(x)).detach()
    for sizes in ([37], [16, 16, 5], [1] * 37):
        stats = fit_feature_stats(model, "iba", x.split(sizes))
        assert stats.n == 37
        torch.testing.assert_close(stats.mean, r.mean(0).float(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(stats.std, r.std(0).float(), rtol=1e-6, atol=1e-7)


def test_a_neuron_is_active_above_one_percent_of_the_images():
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Identity()

        def forward(self, x):
            return self.out(x).flatten(1)

    x = torch.zeros(200, 1, 1, 3)
    x[:2, ..., 1] = 5.0  # exactly one percent
    x[:3, ..., 2] = -1.0
    stats = fit_feature_stats(Classifier(Given()), "out", x.split(64))
    assert stats.active.flatten().tolist() == [False, False, True]


def test_features_are_those_before_an_in_place_relu_and_the_rest_is_not_run():
    model, x, _, _ = setting()
    ran = []
    handle = model.module[8].register_forward_hook(lambda *_: ran.append(1))
    r = layer_output(model, x, "iba")
    handle.remove()
    assert r.min() < 0
    assert not ran


@pytest.mark.parametrize(("kind", "cut"), [(Plain, True), (Residual, False)])
@pytest.mark.parametrize("trainable", [True, False])
def test_a_path_around_the_layer_is_seen(kind, cut, trainable):
    model, x, _, _ = setting(kind)
    model.requires_grad_(trainable)
    with torch.no_grad():
        assert is_cut(model, "iba", model.normalise(x), layer_output(model, x, "iba")) is cut


def test_a_network_that_counts_its_images_at_the_input_still_works():
    class Counting(Plain):
        def forward(self, x):
            features = self.before(x)
            for layer in list(self)[3:7]:
                features = layer(features)
            return self[8](features.view(len(x), 5))

    model, x, target, stats = setting()
    counting = Classifier(Counting().eval().double(), (0.4,) * 3, (0.25,) * 3, {"iba": "2"}).double()
    counting.load_state_dict(model.state_dict())
    fitted = Fitted(feature_stats=stats)
    maps = IBA(steps=3)(counting, x, target, Draws.of(1, IDS), fitted)
    torch.testing.assert_close(maps, IBA(steps=3)(model, x, target, Draws.of(1, IDS), fitted), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_neither_chunk_nor_batch_mates_matter(chunk):
    model, x, target, stats = setting()
    method, fitted = IBA(steps=4, copies=5), Fitted(feature_stats=stats, chunk=chunk)
    whole = method(model, x, target, Draws.of(1, IDS), Fitted(feature_stats=stats, chunk=999))
    order = torch.tensor([2, 0, 1])
    swapped = method(model, x[order], target[order], Draws.of(1, IDS)[order], fitted)
    torch.testing.assert_close(swapped, whole[order], rtol=1e-9, atol=1e-10)
    spoilt = torch.cat([torch.full_like(x[:1], torch.nan), x[1:]])
    maps = method(model, spoilt, target, Draws.of(1, IDS), fitted)
    torch.testing.assert_close(maps[1:], whole[1:], rtol=1e-9, atol=1e-10)
    assert maps[0].isnan().all()


def test_the_model_is_left_as_found():
    model, x, target, stats = setting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    IBA(steps=2)(model, x, target, Draws.of(1, IDS), Fitted(feature_stats=stats))

    def fail(*_):
        raise ValueError("broken")

    handle = model.module[8].register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="broken"):
        IBA(steps=2)(model, x, target, Draws.of(1, IDS), Fitted(feature_stats=stats))
    handle.remove()
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(self.conv(x)).mean((2, 3))


def test_errors_name_what_is_wrong():
    model, x, target, stats = setting()
    rng = Draws.of(1, IDS)
    with pytest.raises(SalrunError, match="needs the feature statistics of layer 'iba'"):
        IBA()(model, x, target, rng, Fitted())
    with pytest.raises(SalrunError, match="do not fit layer '4'"):
        IBA()(model, x, target, rng, Fitted(feature_stats=stats, layer="4"))
    with pytest.raises(SalrunError, match="no feature maps"):
        IBA()(model, x, target, rng, Fitted(feature_stats=stats, layer="8"))
    with pytest.raises(SalrunError, match="narrower than the 6-pixel"):
        IBA(sigma=3.0)(model, x, target, rng, Fitted(feature_stats=stats))
    with pytest.raises(SalrunError, match="target"):
        IBA()(model, x, target[:2], rng, Fitted(feature_stats=stats))
    reused = Classifier(Reused().double(), layers={"iba": "conv"})
    with pytest.raises(SalrunError, match="runs 2 times"):
        IBA()(reused, x, target % 3, rng, Fitted(feature_stats=fit_feature_stats(reused, "iba", [x])))
    with pytest.raises(SalrunError, match="at least 2 images"):
        fit_feature_stats(model, "iba", [x[:1]])


@pytest.mark.parametrize("options", [{"steps": 0}, {"copies": 0}, {"lr": 0.0}, {"sigma": 0.0}, {"beta": -1.0}])
def test_bad_options_are_named(options):
    with pytest.raises(SalrunError, match=f"{next(iter(options))} of IBA"):
        IBA(**options)
