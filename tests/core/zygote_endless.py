"""A program that is never loaded to its end."""

from tests.core import zygote_looking

if __name__ == "__main__":
    del zygote_looking
