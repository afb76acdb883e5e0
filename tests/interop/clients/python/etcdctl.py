"""`etcdctl lock`, behind the line protocol of tests/interop/libraries.py.

etcdctl.py PROGRAM HOST:PORT
"""

import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from protocol import die_with_parent, serve

# It gives its command no standard input: what ends the command is a file, or the end of etcdctl.
HOLD = 'echo "$ETCD_LOCK_KEY $ETCD_LOCK_REV"; while kill -0 "$PPID" && [ ! -e "$1" ]; do sleep 0.02; done 2>&-'


class Lock:
    def __init__(self, program, name, ttl_ms, place):
        self.program, self.name = program, name
        self.end = pathlib.Path(tempfile.mkdtemp(dir=place)) / "end"
        self.before = self.contenders()
        words = [program, "lock", f"--ttl={ttl_ms // 1000}", name, "--", "sh", "-c", HOLD, "sh", str(self.end)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)

    def contenders(self):
        words = [self.program, "get", "--prefix", "--keys-only", f"{self.name}/"]
        return set(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout.split())

    def acquire(self, patience_ms):
        """The revision of the lock, or nothing."""
        end = time.monotonic() + (patience_ms or 30_000) / 1000
        while time.monotonic() < end:
            try:
                self.key, revision = self.lines.get(timeout=0.02).split()
                return revision
            except queue.Empty:
                # Its key stands behind another.
                if not patience_ms and self.before and self.contenders() - self.before:
                    break
        # The one ahead may have left meanwhile: then its command has begun, which a signal does not end.
        self.end.touch()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        # A signal before the reply to its request leaves its key behind, in line until the lease ends. Nobody else joins
        # during a try.
        for key in () if patience_ms else self.contenders() - self.before:
            subprocess.run([self.program, "del", key], stdout=subprocess.DEVNULL, check=True)
        return None

    def release(self):
        self.end.touch()
        self.process.wait()
        return True


def main(program, node):
    os.environ.update(ETCDCTL_API="3", ETCDCTL_ENDPOINTS=node)
    version = subprocess.run([program, "version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    version = re.search(r"etcdctl version: (\S+)", version)[1]
    with tempfile.TemporaryDirectory() as place:
        serve("etcdctl", version, lambda name, ttl_ms: Lock(program, name, ttl_ms, place))


main(*sys.argv[1:])
