"""The playground: a page on which samples form, two solvers side by side from the same noise.

Needs Gradio, Pillow and matplotlib (``pip install 'bayesian-flow[app]'``). Nothing is kept between requests: the page
holds what it shows, the models are read-only, and two people can use it at once.
"""

from bfn.app.server import launch

__all__ = ["launch"]
