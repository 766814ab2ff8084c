"""A program that is loaded only once somebody waits for it, and then waits itself."""

import signal

from tests.core import zygote_awaited

if __name__ == "__main__":
    del zygote_awaited
    signal.pause()
