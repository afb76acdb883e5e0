"""`GET_LOCK` in sessions of the client `mariadb`, behind the line protocol of tests/interop/libraries.py.

get_lock.py HOST:PORT
"""

import re
import subprocess
import sys

from protocol import serve


class Lock:
    """Its session holds it until it is asked to release it, or ends."""

    def __init__(self, node, name):
        self.name = name
        host, port = node.split(":")
        options = ["--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--skip-reconnect"]
        words = ["mariadb", *options, "--protocol=tcp", "--host", host, "--port", port, "--user", "root"]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.client = subprocess.Popen(words, text=True, bufsize=1, **pipes)

    def ask(self, sql):
        print(f"{sql};", file=self.client.stdin, flush=True)
        return self.client.stdout.readline().strip()

    def acquire(self, patience_ms):
        if self.ask(f"SELECT GET_LOCK('{self.name}', {patience_ms / 1000})") != "1":
            self.end()
            return False
        return True

    def release(self):
        released = self.ask(f"SELECT RELEASE_LOCK('{self.name}')")
        self.end()
        return released == "1"

    def end(self):
        self.client.stdin.close()
        self.client.wait()


def main(node):
    version = subprocess.run(["mariadb", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    serve("mariadb", re.search(r"\d+\.\d+\.\d+", version)[0], lambda name, _ttl_ms: Lock(node, name))


main(*sys.argv[1:])
