"""Harmonise a melody: the soprano is given, a model draws the other three voices, and the result is written as MIDI.

    pip install --no-deps music21==10.5.1      # only its score files are read
    python examples/chorales.py --out chorales

The data are chorales by Bach. Each voice is a part of a joint sample, with one pitch for each eighth note. In training,
random voices are given, so that any voice can be given when sampling. Samples are judged by the share of harmonies that
also occur in other chorales, which were not used for training.

Needs ``pip install 'bayesian-flow[train,plot]'``. Takes about two minutes on one core.
"""

import argparse
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

import bfn
from bfn._utils.estimate import Estimate, mean_estimate
from bfn.viz.plots import colour, on

VOICES = ("soprano", "alto", "tenor", "bass")
LOWEST, PITCHES, LENGTH = 35, 50, 32
"""Class c > 0 is the MIDI pitch LOWEST + c, class 0 is a rest. A piece has LENGTH eighth notes (four bars)."""
STEPS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}

Voices = dict[str, Tensor]
"""Classes of each voice, (n_pieces, LENGTH)."""


def read_score(path: Path) -> Tensor | None:
    """Read a chorale, transposed to C major or A minor, as classes (4, n_eighths). None if it does not fit."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("xml") and not n.startswith("META"))
        parts = ElementTree.fromstring(archive.read(name)).findall("part")
    lines = []
    for part in parts:
        if part.find(".//backup") is not None or part.find(".//chord") is not None:
            return None
        divisions = int(part.findtext(".//divisions") or 1)
        shift = -7 * int(part.findtext(".//fifths") or 0) % 12
        line: list[int] = []
        time = 0
        for note in part.iter("note"):
            pitch, time = 0, time + int(note.findtext("duration") or 0)
            if note.find("pitch") is not None:
                octave, alter = int(note.findtext(".//octave") or 4), int(note.findtext(".//alter") or 0)
                pitch = 12 * (octave + 1) + STEPS[note.findtext(".//step") or "C"] + alter
                pitch += (shift if shift < 6 else shift - 12) - LOWEST
            line += [pitch] * (ceil(2 * time / divisions) - len(line))
        lines.append(line)
    same = len({len(line) for line in lines}) == 1
    inside = all(0 <= pitch < PITCHES for line in lines for pitch in line)
    return torch.tensor(lines) if len(lines) == 4 and same and inside and len(lines[0]) >= LENGTH else None


def read_chorales(folder: Path, held_out: int) -> tuple[Voices, Voices, Tensor]:
    """Return training pieces, ``held_out`` test pieces, and the harmonies of as many other chorales."""
    scores = [score for path in sorted(folder.glob("bwv*.mxl")) if (score := read_score(path)) is not None]
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0)).tolist()
    tested, judging, trained = order[:held_out], order[held_out : 2 * held_out], order[2 * held_out :]
    pieces = [piece for i in trained for piece in scores[i].unfold(1, LENGTH, 4).unbind(1)]
    train, test = torch.stack(pieces), torch.stack([scores[i][:, :LENGTH] for i in tested])
    harmonies = torch.cat([harmony(scores[i]) for i in judging])
    return dict(zip(VOICES, train.unbind(1), strict=True)), dict(zip(VOICES, test.unbind(1), strict=True)), harmonies


def harmony(voices: Tensor) -> Tensor:
    """Encode the set of pitch classes at each eighth note as an integer: (..., 4, length) -> (..., length)."""
    tones = nn.functional.one_hot((voices + LOWEST) % 12, 12) * (voices > 0).unsqueeze(-1)
    return (tones.amax(-3) * 2 ** torch.arange(12)).sum(-1)


class Choir(nn.Module):
    """Transformer over time whose tokens are the voices of one eighth note. Input and output are mappings of voices."""

    def __init__(self, width: int = 96, n_blocks: int = 2) -> None:
        super().__init__()
        features = len(VOICES) * PITCHES
        self.transformer = bfn.networks.Transformer(features, width=width, n_blocks=n_blocks, max_length=LENGTH)

    def forward(self, inputs: Mapping[str, Tensor], t: Tensor) -> Voices:
        """Return the logits of each voice: the log of its theta (batch, LENGTH, PITCHES) plus the network's output."""
        theta = torch.cat([inputs[voice] for voice in VOICES], -1)
        said = self.transformer(theta * PITCHES**0.5, t).chunk(len(VOICES), -1)
        return {v: own + inputs[v].clamp(min=1e-30).log() for v, own in zip(VOICES, said, strict=True)}


def some_voices(x: Voices, generator: torch.Generator) -> Voices:
    """Choose the voices that are given in training: none for 30 % of the pieces, else each with probability 1/2."""
    n, length = x["bass"].shape
    any_known = torch.rand(n, 1, generator=generator) < 0.7
    return {v: (any_known & (torch.rand(n, 1, generator=generator) < 0.5)).expand(n, length) for v in VOICES}


def write_midi(path: Path, voices: Tensor, eighth: int = 240) -> None:
    """Write four voices (4, length) as a MIDI file with one track each. Repeated pitches are joined to one note."""

    def number(value: int) -> bytes:
        digits = [value & 127]
        while value := value >> 7:
            digits.insert(0, value & 127 | 128)
        return bytes(digits)

    def chunk(name: bytes, body: bytes) -> bytes:
        return name + len(body).to_bytes(4, "big") + body

    tracks = []
    for channel, voice in enumerate(voices):
        body, wait = b"", 0
        pitches, counts = torch.unique_consecutive(voice, return_counts=True)
        for pitch, count in zip(pitches.tolist(), counts.tolist(), strict=True):
            if pitch:
                body += number(wait) + bytes([0x90 | channel, pitch + LOWEST, 80])
                body += number(count * eighth) + bytes([0x80 | channel, pitch + LOWEST, 0])
            wait = 0 if pitch else wait + count * eighth
        tracks.append(chunk(b"MTrk", body + b"\x00\xff\x2f\x00"))
    header = chunk(b"MThd", (1).to_bytes(2, "big") + len(tracks).to_bytes(2, "big") + (480).to_bytes(2, "big"))
    path.write_bytes(header + b"".join(tracks))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a model, harmonise melodies, measure the harmonies, and write MIDI files and plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("chorales"), help="folder for the model, the MIDI files and the plots"
    )
    parser.add_argument("--scores", type=Path, help="folder of .mxl files (default: the chorales in music21)")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--n", type=int, default=60, help="number of chorales to harmonise, and to judge by")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    found = find_spec("music21")
    if options.scores is None and (found is None or found.origin is None):
        parser.error("no scores found: pip install --no-deps music21==10.5.1, or give a folder with --scores")
    folder = options.scores or Path(found.origin).parent / "corpus" / "bach"
    train, test, harmonies = read_chorales(folder, options.n)
    torch.manual_seed(options.seed)
    flow = bfn.JointFlow({voice: bfn.DiscreteFlow(PITCHES) for voice in VOICES})
    model = bfn.BFN(Choir(), flow, dict.fromkeys(VOICES, "logits"), dict.fromkeys(VOICES, (LENGTH,)))
    bfn.fit(model, train, options.steps, known=some_voices, seed=options.seed, run=options.out / "run")
    model.save(options.out / "model")

    def judged(voices: Tensor) -> Estimate:
        return mean_estimate(torch.isin(harmony(voices), harmonies).float().mean(1)).within(0, 1)

    real = torch.stack([test[voice] for voice in VOICES], 1)
    truth, drawn = judged(real), {}
    curves: dict[str, dict[int, Estimate]] = {"auto": {}, "bfn": {}}
    for solver, figures in curves.items():
        for calls in (3, 5, 10, 20):
            out = model.sample(len(real), solver, calls, known={"soprano": test["soprano"]}, seed=options.seed).x
            drawn[solver, calls] = torch.stack([out[voice] for voice in VOICES], 1)
            figures[calls] = judged(drawn[solver, calls])
            print(f"{solver}, {calls} calls: {figures[calls]} of the harmonies occur in other chorales")
    print(f"Bach himself: {truth}")
    bfn.viz.save(
        bfn.viz.against_calls(curves, "share of harmonies found in chorales", real=truth), options.out / "chorales.png"
    )
    axes = on(None, "a melody harmonised by Bach, by auto and by bfn (5 calls)", size=(8.0, 3.2))
    for column, voices in enumerate((real[0], drawn["auto", 5][0], drawn["bfn", 5][0])):
        write_midi(options.out / f"{('bach', 'auto', 'bfn')[column]}.mid", voices)
        for i, voice in enumerate(voices):
            axes.step(torch.arange(LENGTH) + 36 * column, voice.where(voice > 0, torch.nan) + LOWEST, color=colour(i))
    bfn.viz.save(axes, options.out / "voices.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
