"""What `zygote_endless` imports: it looks for modules for ever, and shows once somebody waits."""

import importlib.util
import os
from pathlib import Path

while True:
    importlib.util.find_spec("there_is_no_such_module")
    if os.getpriority(os.PRIO_PROCESS, 0) == os.getpriority(os.PRIO_PROCESS, os.getppid()):
        Path("awaited").touch()
