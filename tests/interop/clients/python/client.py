"""The `Lock` of redis-py, or that of python-redis-lock, behind the line protocol of tests/interop/libraries.py.

client.py redis-py|python-redis-lock HOST:PORT
"""

import importlib.metadata
import logging
import sys

import redis
import redis_lock


class RedisPy:
    """Waits by asking every 100 ms."""

    def __init__(self, connection, name, ttl_ms):
        self.lock = connection.lock(name, timeout=ttl_ms / 1000)

    def acquire(self, patience_ms):
        return self.lock.acquire(blocking=patience_ms > 0, blocking_timeout=patience_ms / 1000 or None)

    def release(self):
        try:
            self.lock.release()
        except redis.exceptions.LockNotOwnedError:
            return False
        return True


class PythonRedisLock:
    """Waits in BLPOP, as long as a lease at a time: it refuses to wait longer than that and to give up too."""

    def __init__(self, connection, name, ttl_ms):
        self.lock = redis_lock.Lock(connection, name, expire=ttl_ms // 1000)

    def acquire(self, patience_ms):
        return self.lock.acquire(blocking=patience_ms > 0)

    def release(self):
        try:
            self.lock.release()
        except redis_lock.NotAcquired:
            return False
        return True


def main(library, node):
    host, port = node.rsplit(":", 1)
    connection = redis.Redis(host=host, port=int(port))
    kind = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}[library]
    package = {"redis-py": "redis"}.get(library, library)
    # That a lock is busy is what it is asked for, and no warning.
    logging.getLogger("redis_lock").setLevel(logging.ERROR)
    locks = {}

    def obey(word, name, ttl_ms=0, patience_ms=0):
        if word == "unlock":
            return "unlocked" if locks.pop(name).release() else "lost"
        if word == "wait":
            print("waiting", flush=True)
        lock = kind(connection, name, int(ttl_ms))
        if not lock.acquire(int(patience_ms)):
            return "busy"
        locks[name] = lock
        return "held"

    print("ready", library, importlib.metadata.version(package), flush=True)
    for line in sys.stdin:
        try:
            answer = obey(*line.split())
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
        print(answer, flush=True)


main(*sys.argv[1:])
