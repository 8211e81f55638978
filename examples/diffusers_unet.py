"""Train the UNet2DModel of diffusers as a Bayesian flow network on 8 x 8 digits, and sample with a diffusers pipeline.

    python examples/diffusers_unet.py --out digits-pipeline

Needs ``pip install 'bayesian-flow[diffusers,data,cli]'``. The 300 steps take about 50 s on one core; use ``--steps 20``
for a quick test.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import UNet2DModel

import bfn
from bfn.core import losses
from bfn.core.losses import EDM
from bfn.interop.diffusers import BFNPipeline, UNetNetwork
from bfn.viz.pictures import sheet, write_picture

CLASSES, DATA_STD = 10, 0.75


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the model, save it as a pipeline, load the pipeline, and draw samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits-pipeline"), help="folder for the pipeline")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--solver", default="auto", help="a solver for continuous data; `bfn solvers` lists them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    model = make_model()
    train(model, options.steps, options.batch, options.seed)

    # The pipeline consists of the U-Net and a scheduler, as in diffusers.
    BFNPipeline.from_model(model, solver=options.solver).save_pretrained(options.out)
    pipeline = BFNPipeline.from_pretrained(options.out)
    labels = torch.arange(40) % CLASSES
    generator = torch.Generator().manual_seed(options.seed)
    x = pipeline(40, 10, class_labels=labels, generator=generator, output_type="latent").images
    picture = write_picture(options.out / "samples.png", sheet(x, columns=CLASSES))
    print(f"wrote the pipeline to {options.out}/ and 40 digits (10 network calls) to {picture}")
    return 0


def make_model() -> bfn.BFN:
    """Make a small U-Net. It has one class embedding more than there are classes; the last one means "no class"."""
    unet = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(24, 48),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        num_class_embeds=CLASSES + 1,
    )
    head = bfn.heads.PreconditionedHead(DATA_STD)
    return bfn.BFN(UNetNetwork(unet), bfn.ContinuousFlow(sigma_1=1e-3), head, (1, 8, 8))


def train(model: bfn.BFN, steps: int, batch: int, seed: int) -> None:
    """Train with squared errors at the noise levels of Karras et al. (2022). A tenth of the labels is dropped."""
    digits = bfn.data.load("digits", "train")
    x, label = digits.to_float(), digits.labels
    generator, weighting = torch.Generator().manual_seed(seed), EDM(data_std=DATA_STD)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    start, report = time.perf_counter(), max(1, steps // 10)
    for step in range(1, steps + 1):
        rows = torch.randint(len(x), (batch,), generator=generator)
        dropped = torch.rand(batch, generator=generator) < 0.1
        t, factor = weighting.draw(model.flow, batch, generator)
        told = {"label": label[rows].masked_fill(dropped, -1)}
        errors = losses.squared_error(model, x[rows], t, generator, told)
        loss = (factor * errors).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        decay.step()
        if step % report == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
