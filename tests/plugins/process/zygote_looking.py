"""What `zygote_endless` imports: it looks for modules for ever."""

import importlib.util

while True:
    importlib.util.find_spec("there_is_no_such_module")
