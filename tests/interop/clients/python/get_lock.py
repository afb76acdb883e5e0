"""`GET_LOCK` in sessions of the client `mariadb`, behind the line protocol of tests/interop/libraries.py.

get_lock.py HOST:PORT
"""

import re
import subprocess
import sys


class Session:
    """A session holds its lock until it is asked to release it, or ends."""

    def __init__(self, node):
        host, port = node.split(":")
        options = ["--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--skip-reconnect"]
        words = ["mariadb", *options, "--protocol=tcp", "--host", host, "--port", port, "--user", "root"]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.client = subprocess.Popen(words, text=True, bufsize=1, **pipes)

    def ask(self, sql):
        print(f"{sql};", file=self.client.stdin, flush=True)
        return self.client.stdout.readline().strip()

    def end(self):
        self.client.stdin.close()
        self.client.wait()


def main(node):
    version = subprocess.run(["mariadb", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    sessions = {}

    def obey(word, name, ttl_ms=0, patience_ms=0):
        if word == "unlock":
            session = sessions.pop(name)
            released = session.ask(f"SELECT RELEASE_LOCK('{name}')")
            session.end()
            return "unlocked" if released == "1" else "lost"
        if word == "wait":
            print("waiting", flush=True)
        session = Session(node)
        if session.ask(f"SELECT GET_LOCK('{name}', {int(patience_ms) / 1000})") != "1":
            session.end()
            return "busy"
        sessions[name] = session
        return "held"

    print("ready mariadb", re.search(r"\d+\.\d+\.\d+", version)[0], flush=True)
    for line in sys.stdin:
        try:
            answer = obey(*line.split())
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, flush=True)


main(*sys.argv[1:])
