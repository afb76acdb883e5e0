"""Advisory locks in sessions of the client `psql`, behind the line protocol of tests/interop/libraries.py.

psql.py exclusive|shared HOST:PORT

The key of a lock is the `hashtext` of its name.
"""

import subprocess
import sys

SUFFIX = {"exclusive": "", "shared": "_shared"}
# SQLSTATE lock_not_available, after `lock_timeout`.
TOO_LATE = "55P03"


class Session:
    """A session holds its lock until it is asked to release it, or ends."""

    def __init__(self, node, patience_ms):
        host, port = node.split(":")
        where = f"host={host} port={port} user=postgres dbname=postgres options='-c lock_timeout={patience_ms}'"
        words = ["psql", "--no-psqlrc", "--no-align", "--tuples-only", "--quiet", where]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.client = subprocess.Popen(words, text=True, bufsize=1, **pipes)

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
    sessions = {}

    def obey(word, name, _ttl_ms=0, patience_ms=0):
        arguments = f"{SUFFIX[mode]}(hashtext('{name}'))"
        if word == "unlock":
            session = sessions.pop(name)
            released = session.ask(f"SELECT pg_advisory_unlock{arguments}")
            session.end()
            return "unlocked" if released else "lost"
        take = f"pg_try_advisory_lock{arguments}"
        if word == "wait":
            print("waiting", flush=True)
            take = f"true FROM pg_advisory_lock{arguments}"
        session = Session(node, patience_ms)
        if not session.ask(f"SELECT {take}"):
            session.end()
            return "busy"
        sessions[name] = session
        return "held"

    print("ready psql", version.split()[2], flush=True)
    for line in sys.stdin:
        try:
            answer = obey(*line.split())
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, flush=True)


main(*sys.argv[1:])
