"""The package of ../python, for programs in a checkout that look for the module beside the C example: nothing has to be installed.
The guide's page for Python has what to do in threads, forks, signal handlers and asyncio."""

import os
import sys

_source = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python", "src")
sys.path.insert(0, os.path.normpath(_source))
del sys.modules[__name__]
import redlock  # noqa: E402  (the package, which takes the place of this file)

sys.modules[__name__] = redlock
