"""`consul lock`, behind the line protocol of tests/interop/libraries.py.

consul_lock.py PROGRAM HOST:PORT
"""

import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1
# `consul lock` ends its command with SIGTERM, but not if it is killed itself.
HOLD = ': >"$1"; while kill -0 "$PPID" && [ ! -e "$2" ]; do sleep 0.02; done 2>&-'


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Lock:
    def __init__(self, program, name, patience_ms, place):
        directory = pathlib.Path(tempfile.mkdtemp(dir=place))
        self.begin, self.end = directory / "begin", directory / "end"
        # A new session must hear from the server for a moment before -try gives up.
        patience = ["-timeout=0s"] if patience_ms else ["-try=2s"]
        command = ["sh", "-c", HOLD, "sh", str(self.begin), str(self.end)]
        words = [program, "lock", "-shell=false", *patience, name, *command]
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    def acquire(self, patience_ms):
        end = time.monotonic() + (patience_ms or 30_000) / 1000
        while time.monotonic() < end:
            if self.begin.exists():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        self.process.terminate()
        self.process.wait()
        return False

    def release(self):
        self.end.touch()
        self.process.wait()


def main(program, node):
    os.environ.update(CONSUL_HTTP_ADDR=node)
    version = subprocess.run([program, "version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    locks = {}
    with tempfile.TemporaryDirectory() as place:

        def obey(word, name, _ttl_ms=0, patience_ms=0):
            if word == "unlock":
                locks.pop(name).release()
                return "unlocked"
            if word == "wait":
                print("waiting", flush=True)
            lock = Lock(program, name, int(patience_ms), place)
            if not lock.acquire(int(patience_ms)):
                return "busy"
            locks[name] = lock
            return "held"

        print("ready consul", re.search(r"Consul v(\S+)", version)[1], flush=True)
        for line in sys.stdin:
            try:
                answer = obey(*line.split())
            except Exception as error:
                answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
            print(answer, flush=True)


main(*sys.argv[1:])
