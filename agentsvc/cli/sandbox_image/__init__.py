"""Our own sandbox image: what it is made of, and how an engine is asked to build it.

The recipe is the Containerfile beside this file. What is here needs no engine until it is asked
for one, and the client library only then.
"""

from agentsvc.cli.sandbox_image.build import BuiltImage, build, listed
from agentsvc.cli.sandbox_image.recipe import BASE, Recipe, default_name, find_recipe

__all__ = ["BASE", "BuiltImage", "Recipe", "build", "default_name", "find_recipe", "listed"]
