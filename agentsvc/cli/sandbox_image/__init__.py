"""The sandbox image: its recipe, and building it with a container engine.

The recipe is the Containerfile beside this file. The engine's client library is imported only when an
engine is used.
"""

from agentsvc.cli.sandbox_image.build import BuiltImage, build, listed
from agentsvc.cli.sandbox_image.recipe import BASE, Recipe, default_name, find_recipe

__all__ = ["BASE", "BuiltImage", "Recipe", "build", "default_name", "find_recipe", "listed"]
