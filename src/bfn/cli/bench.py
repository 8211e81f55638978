"""``bfn bench``."""

from bfn.cli.common import AsJson, Names, check_positive, tell

__all__ = ["bench"]


def bench(only: Names = (), quick: bool = False, threads: int = 1, json: AsJson = False) -> int:
    """Measure what sampling, training and their parts cost, as ratios: some ten minutes, one with --quick.

    All that is compared takes turns within one run; a figure is the median of the rounds, with its 95 % interval. The
    exit code is 1 where a figure is not what it is to be.

    Example: bfn bench --quick

    Example: bfn bench --only sampling against --json

    Args:
        only: parts to measure: sampling, against, kernel, training, growth, memory, written, compiled, processes.
        quick: fewer cases and rounds.
        threads: CPU threads of torch; more of them wait for each other on a busy machine.
    """
    check_positive(threads=threads)

    from bfn.bench import Figure, run

    def part(name: str, what: str) -> None:
        if not json:
            print(f"{name}: {what}", flush=True)

    def figure(found: Figure) -> None:
        if not json:
            print(found.line(), flush=True)

    figures = run(only, quick, threads, part, figure)
    missed = [found for found in figures if found.met is False]
    if json:
        tell([found.asdict() for found in figures], [], json)
    else:
        print(f"{len(figures)} figures, {len(missed)} not as they are to be")
    return 1 if missed else 0
