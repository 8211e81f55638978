"""How long the playground takes to answer: a request over HTTP for both panels, 10 calls of MNIST each.

python benchmarks/playground.py [--threads 2] [--repeats 10]
"""

import argparse
import json
import statistics
import time
import urllib.request

import torch

from bfn.app.requests import USUAL_SAMPLES
from bfn.app.server import launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (bfn app takes half the cores)")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    page = launch(port=0, block=False)
    panel = [10, "own", "own"]
    seconds = []
    for seed in range(options.repeats + 1):
        values = ["mnist", USUAL_SAMPLES["images"], seed, "all", 1, "", "nothing", 0, "bfn", *panel, "auto", *panel]
        begun = time.perf_counter()
        answer = ask(page.local_url, values)
        seconds.append(time.perf_counter() - begun)
        if b"event: complete" not in answer:
            raise SystemExit(f"not answered: {answer[-500:]!r}")
    page.close(verbose=False)
    first, rest = seconds[0], sorted(seconds[1:])
    print(f"first {first:.2f} s; then median {statistics.median(rest):.2f} s, slowest {rest[-1]:.2f} s of {len(rest)}")


def ask(url: str, values: list[object]) -> bytes:
    """The whole stream of events of one request."""
    body, headers = json.dumps({"data": values}).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}gradio_api/call/draw", body, headers)) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{url}gradio_api/call/draw/{event}") as answer:
        content: bytes = answer.read()
        return content


if __name__ == "__main__":
    main()
