"""Runs the script that is its first argument as Python would, and ends the process before the interpreter is taken down.

A thread of Gloo that drops the last reference to a tensor while the interpreter is taken down aborts the process, with
DistCA and without it: github.com/pytorch/pytorch/issues/190489. On a busy machine, 3 of 40 runs of FSDP2 ended so.
"""

import atexit
import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    atexit._run_exitfuncs()  # DistCA says goodbye to the other ranks there
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
