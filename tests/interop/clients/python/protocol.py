"""The line protocol of tests/interop/libraries.py, for the clients that are written in Python."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent():
    """For the processes that a client starts."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(library, version, make_lock):
    """Obeys until the input ends.

    `make_lock(name, ttl_ms)` makes a lock. Its `acquire(patience_ms)` tries once without patience, and returns whether it
    is held, or its fencing token; `release()` returns whether it was held until then.
    """
    locks = {}

    def obey(word, name, ttl_ms=0, patience_ms=0):
        if word == "unlock":
            return "unlocked" if locks.pop(name).release() else "lost"
        if word == "wait":
            print("waiting", flush=True)
        lock = make_lock(name, int(ttl_ms))
        held = lock.acquire(int(patience_ms))
        if not held:
            return "busy"
        locks[name] = lock
        return "held" if held is True else f"held {held}"

    print("ready", library, version, flush=True)
    for line in sys.stdin:
        try:
            answer = obey(*line.split())
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, flush=True)
