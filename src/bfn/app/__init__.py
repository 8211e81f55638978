"""The playground: a page that shows how samples form, with two solvers side by side from the same noise.

It needs Gradio, Pillow and matplotlib (``pip install 'bayesian-flow[app]'``). Nothing is stored between requests: the
page holds what it shows, and models are read-only, so two people can use it at once.
"""

from bfn.app.server import launch

__all__ = ["launch"]
