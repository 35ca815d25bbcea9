"""What the tests in Python share: where the project is, and commands that must succeed."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def output_of(*command, **options):
    """What a command printed, that must end with 0; the options are those of subprocess.run."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}"
    return done.stdout
