"""``bfn data fetch``."""

from typing import Annotated

from tyro.conf import Positional, arg

from bfn.cli.common import AsJson, on_terminal, print_json
from bfn.errors import UserError


def fetch(
    name: Annotated[Positional[str], arg(metavar="NAME", help="mnist, fashion-mnist, cifar10 or text8")],
    json: AsJson = False,
) -> None:
    """Bring a standard data set into the cache (BFN_HOME, default ~/.cache/bfn) and check its SHA-256 sums.

    Example: bfn data fetch mnist
    """
    from bfn import data

    if name == "digits":
        raise UserError("digits: nothing to fetch, they come with scikit-learn")
    folder = data.fetch(name, progress=on_terminal())
    if json:
        return print_json({"name": name, "folder": str(folder)})
    print(f"{name} is in {folder}")
    return None
