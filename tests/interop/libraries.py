"""The libraries, and the stores that dlock shares with them.

Each library is driven by a small program in clients/, all by one protocol, a line to standard input, lines back:

    try NAME TTL            ->  held [FENCING TOKEN] | busy             at once; times in milliseconds
    wait NAME TTL PATIENCE  ->  waiting, then held [TOKEN] | busy       as the library itself waits
    unlock NAME             ->  unlocked | lost                         what the library says
    anything unexpected     ->  error WHAT

The program's arguments are the servers; its first line is `ready LIBRARY VERSION`, and it ends with its input.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable

import processes

CLIENTS = pathlib.Path(__file__).parent / "clients"
BUILT = pathlib.Path(os.environ["DLOCK_INTEROP"])
# Small and quick to start: all that these do is wait.
JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]


def polling(server, _name):
    """The server sees a waiting client that asks again: more than once since it has begun."""

    def asked():
        statistics = server.redis.info("commandstats")
        return sum(statistics.get(f"cmdstat_{word}", {}).get("calls", 0) for word in ("set", "eval", "evalsha"))

    before = asked()
    return lambda: asked() >= before + 2


def adding(server, _name):
    """The server sees a waiting client that asks again, and one more request at most: that of dlock."""
    before = server.stores()
    return lambda: server.stores() >= before + 3


def blocking(server, _name):
    """The server sees a client in BLPOP."""
    return lambda: server.redis.info("clients")["blocked_clients"] > 0


def subscribing(server, name):
    """The server sees a subscriber of the lock's channel, or of the channel of one in the line of a fair lock."""
    channels = f"redisson_lock__channel:{{{name}}}*"
    return lambda: server.redis.pubsub_channels(channels)


def joining(server, name):
    """The server has an entry of the client in the line of the lock."""
    before = server.contenders(name)
    return lambda: server.contenders(name) > before


def changing(server, _name):
    """The server sees a waiting client that asks again, and at most the requests of one dlock."""
    before = server.asked()
    return lambda: server.asked() >= before + 4


def looking(server, _name):
    """The server sees a waiting client that looks again."""
    before = server.looks()
    return lambda: server.looks() >= before + 2


def in_session(server, _name):
    """The server has a session that waits."""
    return lambda: server.waiting() > 0


@dataclasses.dataclass(frozen=True)
class Library:
    """One way to take locks."""

    name: str
    command: list
    # (server, name of the lock) -> what tells that the client waits.
    waits: Callable


def python(name, waits):
    return Library(name, [sys.executable, CLIENTS / "python/client.py", name], waits)


def java(name, folder, waits, *arguments):
    classes = f"{BUILT / folder / 'jars'}/*:{BUILT / folder / 'classes'}"
    return Library(name, [*JAVA, classes, "Client", *arguments], waits)


def redisson(kind):
    return java(f"Redisson {kind}", "redisson", subscribing, kind)


def etcdctl(version, program):
    words = [sys.executable, CLIENTS / "python/etcdctl.py", program]
    return Library(f"etcdctl {version}", words, joining)


def consul_lock(program):
    words = [sys.executable, CLIENTS / "python/consul_lock.py", program]
    return Library("consul lock", words, joining)


def psql(mode):
    words = [sys.executable, CLIENTS / "python/psql.py", mode]
    return Library(f"psql {mode}", words, in_session)


REDIS_PY = python("redis-py", polling)
PYTHON_REDIS_LOCK = python("python-redis-lock", blocking)
REDSYNC = Library("redsync", [BUILT / "redsync"], polling)
REDLOCK4 = Library("node-redlock 4", ["node", BUILT / "node/client.js", "redlock4"], polling)
REDLOCK5 = Library("node-redlock 5", ["node", BUILT / "node/client.js", "redlock5"], polling)
RLOCK, RFENCEDLOCK, RFAIRLOCK = map(redisson, ("RLock", "RFencedLock", "RFairLock"))
# Its lock for readers.
RREADWRITELOCK = redisson("RReadWriteLock")
ETCDCTL34, ETCDCTL36 = etcdctl("3.4", "etcdctl"), etcdctl("3.6", BUILT / "etcdctl")
GO_MUTEX = Library("concurrency.Mutex", [BUILT / "etcd-mutex"], joining)
JETCD = java("jetcd", "jetcd", joining)
MUTEX = java("InterProcessMutex", "curator", joining, "mutex")
WRITE_LOCK = java("InterProcessReadWriteLock for writing", "curator", joining, "write")
READ_LOCK = java("InterProcessReadWriteLock for reading", "curator", joining, "read")
KAZOO = python("kazoo", joining)
CONSUL_LOCK = consul_lock(BUILT / "consul")
CLIENT_GO = Library("leader election of client-go", [BUILT / "leader"], looking)
PYMEMCACHE = python("pymemcache", adding)
ADVISORY, ADVISORY_SHARED = map(psql, ("exclusive", "shared"))
SHEDLOCK_POSTGRES = java("ShedLock on PostgreSQL", "shedlock", changing, "postgresql")
SHEDLOCK_MARIADB = java("ShedLock on MariaDB", "shedlock", changing, "mariadb")
LOCK_CLIENT = java("AWS's lock client", "lock-client", changing)
GET_LOCK = Library("GET_LOCK of mariadb", [sys.executable, CLIENTS / "python/get_lock.py"], in_session)


@dataclasses.dataclass(frozen=True)
class Store:
    """Where a lock lives, and by which recipe."""

    name: str
    # With {} for the servers.
    url: str
    servers: int = 1
    # How many of them are down.
    down: int = 0
    server: type = processes.Redis
    # Whether a lock can have several holders.
    shares: bool = True


PLAIN = Store("plain", "redis://{}?prefix=")
# The library puts `lock:` before every name, and so does dlock then.
PYTHON_RECIPE = Store("recipe=python-redis-lock", "redis://{}?recipe=python-redis-lock")
REDISSON_RECIPE = Store("recipe=redisson", "redis://{}?prefix=&recipe=redisson")
MAJORITY = Store("redlock", "redlock://{}?prefix=", servers=5)
BARE_MAJORITY = Store("redlock, 2 of 5 down", "redlock://{}?prefix=", servers=5, down=2)
ETCD34 = Store("etcd 3.4", "etcd://{}?prefix=", server=processes.Etcd)
ETCD36 = Store("etcd 3.6", "etcd://{}?prefix=", server=processes.Etcd36)
CURATOR = Store("zookeeper", "zookeeper://{}?prefix=", server=processes.ZooKeeper)
CURATOR_RW = Store("recipe=curator-rw", "zookeeper://{}?prefix=&recipe=curator-rw", server=processes.ZooKeeper)
KAZOO_RECIPE = Store("recipe=kazoo", "zookeeper://{}?prefix=&recipe=kazoo", server=processes.ZooKeeper)
MEMCACHED = Store("memcached", "memcached://{}?prefix=", server=processes.Memcached, shares=False)
CONSUL = Store("consul 1.20", "consul://{}?prefix=", server=processes.Consul, shares=False)
KUBERNETES = Store("kube-apiserver", "k8s://default?kubeconfig={}", server=processes.KubeApi)
DYNAMODB = Store(
    "recipe=lock-client",
    "dynamodb://Locks?endpoint=http://{}&recipe=lock-client",
    server=processes.Moto,
    shares=False,
)
POSTGRES = Store(
    "recipe=advisory", "postgres://postgres@{}/postgres?recipe=advisory&key=hashtext", server=processes.Postgres
)
MARIADB = Store("recipe=get_lock", "mysql://root@{}/locks?recipe=get_lock", server=processes.MariaDb, shares=False)
POSTGRES_OF_SHEDLOCK = Store(
    "recipe=shedlock",
    "postgres://postgres@{}/postgres?recipe=shedlock&clock=db-utc",
    server=processes.PostgresOfShedLock,
    shares=False,
)
MARIADB_OF_SHEDLOCK = Store(
    "recipe=shedlock",
    "mysql://root@{}/locks?recipe=shedlock&clock=db-utc",
    server=processes.MariaDbOfShedLock,
    shares=False,
)
