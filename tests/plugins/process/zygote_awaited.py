"""What `zygote_patient` imports: it looks for modules until it is as important as its server."""

import importlib.util
import os

while os.getpriority(os.PRIO_PROCESS, 0) >= 10:
    importlib.util.find_spec("there_is_no_such_module")
