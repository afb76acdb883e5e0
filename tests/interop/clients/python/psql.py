"""Advisory locks in sessions of the client `psql`, behind the line protocol of tests/interop/libraries.py.

psql.py exclusive|shared HOST:PORT

The key of a lock is the `hashtext` of its name.
"""

import subprocess
import sys

from protocol import serve

SUFFIX = {"exclusive": "", "shared": "_shared"}
# SQLSTATE lock_not_available, after `lock_timeout`.
TOO_LATE = "55P03"


class Lock:
    """Its session holds it until it is asked to release it, or ends."""

    def __init__(self, mode, node, name):
        self.node, self.arguments = node, f"{SUFFIX[mode]}(hashtext('{name}'))"

    def acquire(self, patience_ms):
        host, port = self.node.split(":")
        where = f"host={host} port={port} user=postgres dbname=postgres options='-c lock_timeout={patience_ms}'"
        words = ["psql", "--no-psqlrc", "--no-align", "--tuples-only", "--quiet", where]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.client = subprocess.Popen(words, text=True, bufsize=1, **pipes)
        take = "true FROM pg_advisory_lock" if patience_ms else "pg_try_advisory_lock"
        if not self.ask(f"SELECT {take}{self.arguments}"):
            self.end()
            return False
        return True

    def release(self):
        released = self.ask(f"SELECT pg_advisory_unlock{self.arguments}")
        self.end()
        return released

    def ask(self, sql):
        """Whether it returns true, and does so in time."""
        print(f"{sql};\n\\echo :SQLSTATE", file=self.client.stdin, flush=True)
        answer = self.client.stdout.readline().strip()
        if answer == TOO_LATE:
            return False
        if answer not in ("t", "f"):
            raise ValueError(f"psql answers '{answer}'")
        self.client.stdout.readline()
        return answer == "t"

    def end(self):
        self.client.stdin.close()
        self.client.wait()


def main(mode, node):
    version = subprocess.run(["psql", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    serve("psql", version.split()[2], lambda name, _ttl_ms: Lock(mode, node, name))


main(*sys.argv[1:])
