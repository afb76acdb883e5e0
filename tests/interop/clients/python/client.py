"""The `Lock` of redis-py, python-redis-lock or kazoo, or `add` of pymemcache, behind the line protocol of tests/interop/libraries.py.

client.py redis-py|python-redis-lock|kazoo|pymemcache HOST:PORT
"""

import functools
import importlib.metadata
import logging
import sys
import time

import redis
import redis_lock
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from protocol import serve
from pymemcache.client.base import Client


class RedisPy:
    """Waits by asking every 100 ms."""

    def __init__(self, node, name, ttl_ms):
        self.lock = connect(node).lock(name, timeout=ttl_ms / 1000)

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

    def __init__(self, node, name, ttl_ms):
        self.lock = redis_lock.Lock(connect(node), name, expire=ttl_ms // 1000)

    def acquire(self, patience_ms):
        return self.lock.acquire(blocking=patience_ms > 0)

    def release(self):
        try:
            self.lock.release()
        except redis_lock.NotAcquired:
            return False
        return True


class Kazoo:
    """Each lock has a session of its own, because the lease of a lock is the time-out of a session."""

    def __init__(self, node, name, ttl_ms):
        self.client = KazooClient(node, timeout=ttl_ms / 1000)
        self.client.start()
        self.lock = self.client.Lock(f"/{name}", "a client")

    def acquire(self, patience_ms):
        try:
            acquired = self.lock.acquire(blocking=patience_ms > 0, timeout=patience_ms / 1000 or None)
        except LockTimeout:
            acquired = False
        if not acquired:
            self._end()
        return acquired

    def release(self):
        self.lock.release()
        self._end()
        return True

    def _end(self):
        self.client.stop()
        self.client.close()


class Pymemcache:
    """It has no lock: this is how its users make one, as the manual of Celery and ShedLock do. Asks every 100 ms."""

    def __init__(self, node, name, ttl_ms):
        host, port = node.rsplit(":", 1)
        self.client, self.name, self.seconds = Client((host, int(port))), name, ttl_ms // 1000

    def acquire(self, patience_ms):
        end = time.monotonic() + patience_ms / 1000
        while not self.client.add(self.name, "a client", expire=self.seconds, noreply=False):
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def release(self):
        return self.client.delete(self.name, noreply=False)


@functools.cache
def connect(node):
    host, port = node.rsplit(":", 1)
    return redis.Redis(host=host, port=int(port))


def main(library, node):
    kind = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "kazoo": Kazoo, "pymemcache": Pymemcache}[library]
    package = {"redis-py": "redis"}.get(library, library)
    # That a lock is busy is what it is asked for, and no warning.
    logging.getLogger("redis_lock").setLevel(logging.ERROR)
    serve(library, importlib.metadata.version(package), lambda name, ttl_ms: kind(node, name, ttl_ms))


main(*sys.argv[1:])
