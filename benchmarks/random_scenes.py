"""Train an encoder on images of random scenes, as the one that :mod:`dpalgos.features.encoder` ships.

In a separate environment (``benchmarks/random_scenes.txt``), on one GPU for minutes or on a processor for a trial::

    python benchmarks/random_scenes.py --pairs 12_000_000 --out big.npz [--net small] [--probe FOLDER]

No photograph has a part in it: a scene is a list of random leaves, a pair is two views of one scene, and the network
learns to tell them from the views of all other scenes of a step. ``--probe`` says afterwards, of a folder with
CIFAR-10's ``data_batch_1.bin``, how many of 2,000 rows a ridge regression on 8,000 others gets right. The file holds
what ``dpalgos/features/encoder`` reads: kernels in eight bits with a scale for each channel, batch norms folded in.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = {"big": (48, 96, 192, 384), "small": (32, 64, 128, 256)}
SIDE, SAMPLES = 32, 2
LEAVES, LARGE, BEHIND, PALETTE, TEXTURES, TEXELS, HIDDEN = 48, 3, 6, 7, 256, 128, 16
TEMPERATURE, RATE, WARM_UP, DECAY, LONGEST, KEPT = 0.2, 1.5e-3, 200, 1e-4, 5.0, 0.999


class Draws:
    """Random numbers of one seed on one device."""

    def __init__(self, seed: int, device: str) -> None:
        self.device, self.source = device, torch.Generator(device).manual_seed(seed)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers between two others."""
        return low + (high - low) * torch.rand(shape, generator=self.source, device=self.device)

    def normal(self, deviation: float, *shape: int) -> Tensor:
        """Return normal numbers of mean 0."""
        return deviation * torch.randn(shape, generator=self.source, device=self.device)

    def whole(self, below: int, *shape: int) -> Tensor:
        """Return whole numbers from 0."""
        return torch.randint(below, shape, generator=self.source, device=self.device)


def textures(draws: Draws) -> Tensor:
    """Return periodic fields (256 · 128 · 128,) of mean 0 and variance 1 with oriented spectra 1/fᵃ."""
    y, x = torch.meshgrid(*[torch.fft.fftfreq(TEXELS, device=draws.device)] * 2, indexing="ij")
    shape = (TEXTURES, 1, 1)
    angle, stretch, slope = (draws.uniform(*ends, *shape) for ends in ((0.0, math.pi), (0.0, 1.8), (0.5, 2.0)))
    along, beside = angle.cos() * x + angle.sin() * y, angle.cos() * y - angle.sin() * x
    frequency = (along**2 + (stretch.exp() * beside) ** 2).sqrt()
    frequency[:, 0, 0] = torch.inf
    noise = torch.fft.fft2(draws.normal(1.0, TEXTURES, TEXELS, TEXELS))
    fields = torch.fft.ifft2(noise * frequency**-slope).real
    return (fields / fields.std(dim=(1, 2), keepdim=True)).flatten()


def scenes(count: int, draws: Draws) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return shapes (n, 48, 12) and materials (n, 48, 20) of leaves from front to back, kinds, networks of sines."""
    of = (count, LEAVES)
    # Sizes with density s^-2.6 on [0.05, 0.75].
    low, high = 0.05**-1.6, 0.75**-1.6
    size = (low + (high - low) * draws.uniform(0.0, 1.0, *of)) ** (-1 / 1.6)
    place = draws.uniform(-1.1, 1.1, *of, 2)
    front = torch.arange(LARGE, device=draws.device) < draws.whole(LARGE + 1, count, 1)
    size[:, :LARGE] = torch.where(front, draws.uniform(0.25, 0.75, count, LARGE), size[:, :LARGE])
    place[:, :LARGE] = torch.where(front[..., None], draws.normal(0.4, count, LARGE, 2), place[:, :LARGE])
    size[:, -BEHIND:] = 1.2
    aspect, angle = draws.normal(0.3, *of).exp(), draws.uniform(0.0, 2 * math.pi, *of)
    exponent, sides = draws.uniform(math.log(0.8), math.log(6.0), *of).exp(), 3.0 + draws.whole(4, *of)
    kind = draws.whole(3, *of)
    waves = draws.normal(0.14, *of, 4)
    shapes = torch.stack([*place.unbind(-1), angle.cos(), angle.sin(), size * aspect, size / aspect, exponent, sides,
                          *waves.unbind(-1)], dim=-1)  # fmt: skip
    grey = (0.48 + draws.normal(0.24, count, PALETTE, 1)).expand(-1, -1, 3)
    chroma = draws.normal(0.05, count, 1, 3) + draws.normal(0.07, count, PALETTE, 3)
    palette = grey + chroma - chroma.mean(dim=-1, keepdim=True)
    chosen = draws.whole(PALETTE, *of, 2, 1).expand(-1, -1, -1, 3)
    colours = torch.gather(palette[:, None].expand(-1, LEAVES, -1, -1), 2, chosen).flatten(2)
    # How much of the texture, how much of the network, how sharp they are, how far the second colour comes through.
    which = draws.whole(3, *of)
    mixed = torch.stack([which != 1, which != 0]).float().unbind(0)
    sharp, through = draws.normal(0.7, *of).exp() * 1.5, (draws.normal(0.8, *of) - 0.7).exp().clamp(max=1.0)
    zoom = TEXELS / 2 * draws.uniform(-1.2, 1.0, *of).exp()
    first = draws.whole(TEXTURES, *of).float()
    away = draws.uniform(0.0, TEXELS, *of, 2)
    ball = (draws.uniform(0.0, 1.0, *of) < 0.4).float()
    light, towards = draws.normal(0.25, *of), draws.uniform(0.0, 2 * math.pi, *of)
    materials = torch.stack([*colours.unbind(-1), *mixed, sharp, through, zoom, first, *away.unbind(-1), ball, light,
                             towards.cos(), towards.sin(), *draws.normal(2.0, *of, 2).unbind(-1)], dim=-1)  # fmt: skip
    sines = [draws.normal(4.0, count, 2, HIDDEN), draws.normal(1.2, count, HIDDEN, HIDDEN) / HIDDEN**0.5 * 1.5,
             draws.normal(1.0, count, HIDDEN, 1) * (2.0 / HIDDEN) ** 0.5]  # fmt: skip
    return shapes, materials, kind, sines


def places(count: int, draws: Draws) -> Tensor:
    """Return where two views of each scene look, (n, 2 · 64 · 64, 2), in half sides from the middle."""
    grid = (torch.arange(SIDE * SAMPLES, device=draws.device) + 0.5) / (SIDE * SAMPLES) * 2.0 - 1.0
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    of = (count, 2, 1, 1)
    area, aspect = draws.uniform(0.2, 1.0, *of).sqrt(), draws.uniform(-0.25, 0.25, *of).exp()
    tall, wide = (area * aspect).clamp(max=1.0), (area / aspect).clamp(max=1.0)
    mirror = 1.0 - 2.0 * draws.whole(2, *of)
    turn = draws.normal(0.14, *of)
    v, u = tall * y, wide * mirror * x
    down = turn.cos() * v + turn.sin() * u + (1.0 - tall) * draws.uniform(-1.0, 1.0, *of)
    across = turn.cos() * u - turn.sin() * v + (1.0 - wide) * draws.uniform(-1.0, 1.0, *of)
    return torch.stack([down, across], dim=-1).reshape(count, -1, 2)


def front_most(points: Tensor, shapes: Tensor, kind: Tensor) -> Tensor:
    """Return which leaf is seen at each point, (n, points): the first that covers it, or the last."""
    leaf = [one[:, None] for one in shapes.unbind(-1)]
    v, u = points[..., 0:1] - leaf[0], points[..., 1:2] - leaf[1]
    along, beside = (leaf[2] * v + leaf[3] * u) / leaf[4], (leaf[2] * u - leaf[3] * v) / leaf[5]
    power = leaf[6]
    ellipse = along.abs().clamp(min=1e-6) ** power + beside.abs().clamp(min=1e-6) ** power
    radius, angle = (along**2 + beside**2).sqrt(), torch.atan2(along, beside) + math.pi
    part = 2 * math.pi / leaf[7]
    polygon = radius * torch.cos(angle - part * (torch.floor(angle / part) + 0.5)) / torch.cos(part / 2)
    bulge = leaf[8] * torch.cos(2 * angle) + leaf[9] * torch.sin(3 * angle) + leaf[10] * torch.cos(3 * angle)
    blob = radius / (1.0 + bulge + leaf[11] * torch.sin(5 * angle)).clamp(min=0.3)
    kind = kind[:, None]
    inside = torch.where(kind == 0, ellipse, torch.where(kind == 1, polygon, blob)) < 1.0
    order = torch.arange(LEAVES, device=points.device)
    return torch.where(inside, order, LEAVES - 1).amin(dim=-1)


def rendered(
    points: Tensor, shapes: Tensor, kind: Tensor, materials: Tensor, sines: list[Tensor], fields: Tensor
) -> Tensor:
    """Return the views, (2 n, 3, 32, 32)."""
    seen = front_most(points, shapes, kind)[..., None]
    leaf = torch.gather(shapes, 1, seen.expand(-1, -1, 6)).unbind(-1)
    own = torch.gather(materials, 1, seen.expand(-1, -1, materials.shape[-1])).unbind(-1)
    v, u = points[..., 0] - leaf[0], points[..., 1] - leaf[1]
    along, beside = (leaf[2] * v + leaf[3] * u) / leaf[4], (leaf[2] * u - leaf[3] * v) / leaf[5]
    row = torch.remainder(own[10] * points[..., 0] + own[12], TEXELS).long().clamp(max=TEXELS - 1)
    column = torch.remainder(own[10] * points[..., 1] + own[13], TEXELS).long().clamp(max=TEXELS - 1)
    texture = fields[(own[11].long() * TEXELS + row) * TEXELS + column]
    value = torch.stack([points[..., 0] + own[18], points[..., 1] + own[19]], dim=-1)
    for weights in sines[:-1]:
        value = torch.sin(torch.bmm(value, weights))
    network = torch.bmm(value, sines[-1])[..., 0]
    mix = own[9] * torch.sigmoid(own[8] * (own[6] * texture + own[7] * network))
    height = (1.0 - along**2 - beside**2).clamp(min=0.0).sqrt()
    slope = own[16] * along + own[17] * beside
    shade = 1.0 + own[15] * torch.where(own[14] > 0, slope + 2.0 * height - 1.0, slope)
    colour = torch.stack([(own[c] + mix * (own[3 + c] - own[c])) * shade for c in range(3)], dim=1)
    fine = colour.reshape(len(colour), 3, 2, SIDE, SAMPLES, SIDE, SAMPLES).mean(dim=(4, 6))
    return fine.transpose(1, 2).flatten(0, 1)


def lit(views: Tensor, draws: Draws) -> Tensor:
    """Return the views in other colours, in [0, 1]."""
    of = (len(views), 1, 1, 1)
    angle = draws.normal(0.25, *of)
    cosine, sine = angle.cos(), angle.sin() / math.sqrt(3.0)
    red, green, blue = views.unbind(1)
    around = torch.stack([blue - green, red - blue, green - red], dim=1)
    grey = views.mean(dim=1, keepdim=True)
    turned = grey + cosine * (views - grey) + sine * around
    saturation = draws.uniform(0.3, 1.7, *of) * (draws.uniform(0.0, 1.0, *of) >= 0.12)
    turned = grey + saturation * (turned - grey)
    middle = turned.mean(dim=(1, 2, 3), keepdim=True)
    turned = middle + draws.uniform(0.5, 1.5, *of) * (turned - middle)
    gain = draws.uniform(0.65, 1.35, *of) * draws.normal(0.08, len(views), 3, 1, 1).exp()
    noise = draws.uniform(0.0, 0.02, *of) * draws.normal(1.0, *views.shape)
    return (gain * turned + noise).clamp(0.0, 1.0)


class Encoder(nn.Module):
    """The network: a stem, then three stages, each a halving convolution and a residual block."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = [(3, widths[0])]
        for before, width in pairwise(widths):
            pairs += [(before, width), (width, width), (width, width)]
        self.kernels = nn.ModuleList(nn.Conv2d(before, width, 3, bias=False) for before, width in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _, width in pairs)
        for number, one in enumerate(self.kernels):
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu")
            if number and number % 3 == 0:
                one.weight.data *= 0.2
        self.head = nn.Sequential(nn.Linear(widths[-1], 512), nn.ReLU(), nn.Linear(512, 128))

    def layer(self, number: int, seen: Tensor) -> Tensor:
        """Return a convolution of what is seen, normalised."""
        # At stride 2 no pixel before and one after.
        halved = number % 3 == 1
        padded = functional.pad(seen, (0, 1, 0, 1) if halved else (1, 1, 1, 1))
        kernel = self.kernels[number].weight
        return self.norms[number](functional.conv2d(padded, kernel, stride=2 if halved else 1))

    def stages(self, views: Tensor) -> list[Tensor]:
        """Return what the three stages hold, of views in [0, 1]."""
        seen, found = functional.relu(self.layer(0, (views - 0.5) * 4.0)), []
        for first in (1, 4, 7):
            seen = functional.relu(self.layer(first, seen))
            seen = functional.relu(seen + self.layer(first + 2, functional.relu(self.layer(first + 1, seen))))
            found.append(seen)
        return found

    def forward(self, views: Tensor) -> Tensor:
        """Return directions of norm 1 that the loss compares."""
        return functional.normalize(self.head(self.stages(views)[-1].mean(dim=(2, 3))).float(), dim=1)

    def features(self, views: Tensor) -> Tensor:
        """Return means over 2 x 2 cells of the last two stages and over mirror images, their roots."""
        means = []
        for each in (views, views.flip(3)):
            _, before, last = self.stages(each)
            cells = [functional.adaptive_avg_pool2d(one, 2).permute(0, 2, 3, 1).flatten(1) for one in (last, before)]
            means.append(torch.cat(cells, dim=1))
        return ((means[0] + means[1]) / 2).sqrt()


def contrast(directions: Tensor) -> Tensor:
    """Return NT-Xent: of each view, how surely its partner is told from all other views of the step."""
    likeness = directions @ directions.T / TEMPERATURE
    likeness.fill_diagonal_(-torch.inf)
    partner = torch.arange(len(directions), device=directions.device) ^ 1
    return functional.cross_entropy(likeness, partner)


def views_of(count: int, draws: Draws, fields: Tensor, render: object = rendered) -> Tensor:
    """Return ``2 * count`` views, those of a scene one after the other."""
    shapes, materials, kind, sines = scenes(count, draws)
    return lit(render(places(count, draws), shapes, kind, materials, sines, fields), draws)  # type: ignore[operator]


def taught(
    widths: tuple[int, ...], pairs: int, views: int, seed: int, device: str, seconds: float = math.inf
) -> Encoder:
    """Return a network taught on so many pairs, with weights averaged over the steps and batch norms frozen."""
    torch.manual_seed(seed)
    draws = Draws(seed, device)
    fields = textures(draws)
    network = Encoder(widths).to(device, memory_format=torch.channels_last)
    averaged = Encoder(widths).to(device, memory_format=torch.channels_last)
    averaged.load_state_dict(network.state_dict())
    kernels = [one for one in network.parameters() if one.ndim > 1]
    others = [one for one in network.parameters() if one.ndim <= 1]
    gpu, steps = device != "cpu", max(1, 2 * pairs // views)
    optimiser = torch.optim.AdamW(
        [{"params": kernels, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.99), fused=gpu,
    )  # fmt: skip
    render, forward = (torch.compile(one) if gpu else one for one in (rendered, network))
    started, said, share, step = time.monotonic(), 0.0, 0.0, 0
    for step in range(steps):
        # Where seconds are given, the schedule follows whichever runs out first.
        share = max(step / steps, (time.monotonic() - started) / seconds)
        if share >= 1.0:
            break
        rate = RATE * min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.no_grad():
            shown = views_of(views // 2, draws, fields, render).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16, enabled=gpu):
            directions = forward(shown)
        loss = contrast(directions)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), LONGEST)
        optimiser.step()
        keep = min(KEPT, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), 1.0 - keep)
        if time.monotonic() - said > 15.0:
            said = time.monotonic()
            print(f"step {step} of {steps}, loss {loss.item():.3f}, {said - started:.0f} s", flush=True)
    print(f"{(step + 1) * views // 2:,} pairs in {time.monotonic() - started:.0f} s", flush=True)
    frozen(averaged, draws, fields, min(views, 1024))
    return averaged


@torch.no_grad()
def frozen(network: Encoder, draws: Draws, fields: Tensor, views: int) -> None:
    """Set the batch norms' means and variances to those over sixteen times so many views."""
    for norm in network.norms:
        norm.reset_running_stats()
        norm.momentum = None
    network.train()
    for _ in range(16):
        network.stages(views_of(views // 2, draws, fields))
    network.eval()


def folded(network: Encoder) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each layer's kernel (3, 3, channels in, channels out) and bias, batch norms folded in."""
    for kernel, norm in zip(network.kernels, network.norms, strict=True):
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        whole = (kernel.weight * scale[:, None, None, None]).permute(2, 3, 1, 0)
        yield whole.detach().cpu().numpy(), (norm.bias - norm.running_mean * scale).detach().cpu().numpy()


def quantised(layers: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what the package reads: kernels in eight bits, a scale for each channel that comes out."""
    scales = [np.maximum(np.abs(kernel).max(axis=(0, 1, 2)), 1e-12).astype(np.float32) / 127 for kernel, _ in layers]
    whole = [np.rint(kernel / scale).astype(np.int8) for (kernel, _), scale in zip(layers, scales, strict=True)]
    outs = [kernel.shape[-1] for kernel, _ in layers]
    return {
        "widths": np.array([outs[0], *outs[1::3]]),
        "kernels": np.concatenate([one.ravel() for one in whole]),
        "scales": np.concatenate(scales),
        "biases": np.concatenate([bias.astype(np.float32) for _, bias in layers]),
    }


@torch.no_grad()
def probed(network: Encoder, folder: Path, device: str) -> float:
    """Return the share of 2,000 rows of CIFAR-10 that a ridge regression on 8,000 others gets right."""
    rows = np.fromfile(folder / "data_batch_1.bin", np.uint8).reshape(-1, 3073)
    pictures = torch.tensor(rows[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    found = torch.cat([network.features(part.to(device)).cpu() for part in pictures.split(250)]).double().numpy()
    return ridge(found, rows[:, 0].astype(np.int64), 8000)


def ridge(found: np.ndarray, labels: np.ndarray, first: int) -> float:
    """Return the share of the rows after the first so many that a ridge regression on those gets right."""
    mean, deviation = found[:first].mean(axis=0), found[:first].std(axis=0) + 1e-3
    seen = np.hstack([(found - mean) / deviation, np.ones((len(found), 1))])
    wanted = np.eye(10)[labels[:first]] - 0.1
    weights = np.linalg.solve(seen[:first].T @ seen[:first] + 1000.0 * np.eye(seen.shape[1]), seen[:first].T @ wanted)
    return float(np.mean((seen[first:] @ weights).argmax(axis=1) == labels[first:]))


def main() -> None:
    """Teach a network and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=sorted(WIDTHS), default="big")
    parser.add_argument("--pairs", type=int, default=12_000_000)
    parser.add_argument("--views", type=int, default=4096, help="of a step")
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most; the schedule is fitted to them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--probe", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = taught(WIDTHS[given.net], given.pairs, given.views, given.seed, device, given.seconds)
    np.savez(given.out, **quantised(list(folded(network))))
    if given.probe:
        print(f"probe: {probed(network, given.probe, device):.4f}")


if __name__ == "__main__":
    main()
