"""`consul lock`, behind the line protocol of tests/interop/libraries.py.

consul_lock.py PROGRAM HOST:PORT
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from protocol import die_with_parent, serve

# `consul lock` ends its command with SIGTERM, but not if it is killed itself.
HOLD = ': >"$1"; while kill -0 "$PPID" && [ ! -e "$2" ]; do sleep 0.02; done 2>&-'


class Lock:
    def __init__(self, program, name, place):
        self.program, self.name = program, name
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=place))

    def acquire(self, patience_ms):
        begin = self.directory / "begin"
        # A new session must hear from the server for a moment before -try gives up.
        patience = ["-timeout=0s"] if patience_ms else ["-try=2s"]
        command = ["sh", "-c", HOLD, "sh", str(begin), str(self.directory / "end")]
        words = [self.program, "lock", "-shell=false", *patience, self.name, *command]
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        end = time.monotonic() + (patience_ms or 30_000) / 1000
        while time.monotonic() < end:
            if begin.exists():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        self.process.terminate()
        self.process.wait()
        return False

    def release(self):
        (self.directory / "end").touch()
        self.process.wait()
        return True


def main(program, node):
    os.environ.update(CONSUL_HTTP_ADDR=node)
    version = subprocess.run([program, "version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    version = re.search(r"Consul v(\S+)", version)[1]
    with tempfile.TemporaryDirectory() as place:
        serve("consul", version, lambda name, _ttl_ms: Lock(program, name, place))


main(*sys.argv[1:])
