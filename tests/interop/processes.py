"""What the scenarios start: programs that are read line by line, servers, dlocks, and clients of libraries."""

import base64
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request

import redis
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pymemcache.client.base import Client as MemcacheClient
from pymemcache.exceptions import MemcacheError

# Within this an event comes that has to come, on a machine that is busy with something else. Nothing is ever measured.
SOON = 30
# A lease that outlives every scenario, so that whoever gets in before it ends was let in; in ms.
LONG = 120_000
# A lease whose end is awaited; in ms, and in whole seconds, as python-redis-lock has them.
SHORT = 3_000

PR_SET_CHILD_SUBREAPER = 36


class Failure(Exception):
    """A scenario did not go as it has to."""


def equal(found, wanted, what):
    if found != wanted:
        raise Failure(f"{what}: {found!r}, and not {wanted!r}")


def until(what, look, deadline=SOON):
    """Looks again and again until there is something to see, and returns it."""
    end = time.monotonic() + deadline
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            raise Failure(f"not seen within {deadline}s: {what}")
        time.sleep(0.02)


def throughout(what, look, duration=0.3):
    """Looks again and again for a while: it has to be so the whole time."""
    end = time.monotonic() + duration
    while time.monotonic() < end:
        if not look():
            raise Failure(f"no longer so: {what}")
        time.sleep(0.02)


class Process:
    """A program with pipes. It is in a session of its own, so that what it starts can be found and ended."""

    # Those that have been started and not cleared; None when no more may be started.
    alive = set()
    starting = threading.Lock()

    def __init__(self, argv, environment=None, directory=None):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with Process.starting:
            if Process.alive is None:
                raise Failure("the end has come")
            self.popen = subprocess.Popen(
                argv, text=True, env=environment, cwd=directory, start_new_session=True, errors="replace", **pipes
            )
            Process.alive.add(self)
        self.argv, self.asked = argv, 0
        self.lines, self.errors = [], []
        self.readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.popen.stdout, self.lines), (self.popen.stderr, self.errors))
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def pid(self):
        return self.popen.pid

    def say(self, *words):
        try:
            print(*words, file=self.popen.stdin, flush=True)
        except BrokenPipeError:
            raise Failure(f"{self} has ended") from None

    def answer(self):
        """The next line that nobody has asked for yet."""

        def look():
            if len(self.lines) > self.asked:
                return True
            if self.popen.poll() is not None and not self.readers[0].is_alive():
                raise Failure(f"{self} ended with {self.popen.returncode} instead of an answer")
            return False

        until(f"an answer of {self}", look)
        self.asked += 1
        return self.lines[self.asked - 1]

    def is_silent(self):
        return len(self.lines) == self.asked

    def tells(self, text):
        """Whether a line on standard error contains this."""
        return any(text in line for line in list(self.errors))

    def status(self):
        """Closes standard input and waits for the end."""
        self.popen.stdin.close()
        try:
            self.popen.wait(SOON)
        except subprocess.TimeoutExpired:
            raise Failure(f"does not end: {self}") from None
        # What it left behind may have the pipes open; then there is nothing more to read from itself.
        for reader in self.readers:
            reader.join(1)
        return self.popen.returncode

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def clear(self):
        """Ends it by force, if it has not ended, and its session."""
        with Process.starting:
            if Process.alive is not None:
                Process.alive.discard(self)
        self.end_session()

    def end_session(self):
        # Once it has been waited for, its number may be anybody's. What it left behind then is found at the very end.
        if self.popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()

    def __str__(self):
        said = "".join(f"\n#     | {line}" for line in (self.lines + self.errors)[-8:])
        return f"{' '.join(map(str, self.argv))}{said}"


class Server:
    """A server on ports of its own. It ends with its standard input, however the driver may end."""

    KEEPER = '"$@" & read -r line; kill "$!"; wait "$!"'
    # Within this it has to be up, or its port is not free.
    UP = 10

    def __init__(self, place):
        place = pathlib.Path(tempfile.mkdtemp(prefix="server.", dir=place))
        # Somebody else may take a port between the look for it and its use.
        for _ in range(5):
            self.port = free_port()
            words = [str(word) for word in self.command(place)]
            self.process = Process(["sh", "-c", self.KEEPER, "sh", *words])
            try:
                until(f"{words[0]} on {self.port}", self.answers, self.UP)
                return
            except Failure:
                self.end()
        raise Failure(f"does not start: {self.process}")

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def end(self):
        self.process.clear()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis(Server):
    def command(self, place):
        self.redis = redis.Redis(port=self.port, decode_responses=True)
        options = {"port": self.port, "bind": "127.0.0.1", "dir": place, "save": ""}
        return ["redis-server", *(word for option in options.items() for word in (f"--{option[0]}", option[1]))]

    def answers(self):
        try:
            return self.redis.info("server")["tcp_port"] == self.port
        except redis.exceptions.ConnectionError:
            return False

    def end(self):
        self.redis.close()
        super().end()


class Etcd(Server):
    """The etcd of this system, version 3.4 on Debian 12."""

    PROGRAM = "etcd"

    def command(self, place):
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": place,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "heartbeat-interval": 20,
            "election-timeout": 200,
        }
        return [self.PROGRAM, *(f"--{name}={value}" for name, value in options.items())]

    def answers(self):
        try:
            return self.contenders("x") == 0
        except OSError:
            return False

    def contenders(self, name):
        """How many hold the lock or wait for it."""
        key, end = (base64.b64encode(f"{name}{last}".encode()).decode() for last in "/0")
        body = json.dumps({"key": key, "range_end": end, "count_only": True}).encode()
        with urllib.request.urlopen(f"http://{self.address}/v3/kv/range", body, SOON) as reply:
            return int(json.load(reply).get("count", 0))


class Etcd36(Etcd):
    PROGRAM = pathlib.Path(os.environ["DLOCK_INTEROP"]) / "etcd-server"


class Consul(Server):
    """One server of Consul."""

    UP = 30
    PROGRAM = pathlib.Path(os.environ["DLOCK_INTEROP"]) / "consul"

    def command(self, place):
        settings = {
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "data_dir": str(place / "data"),
            "node_name": "node",
            "server": True,
            "bootstrap": True,
            "disable_update_check": True,
            "log_level": "warn",
            "performance": {"raft_multiplier": 1},
            "ports": {
                **dict.fromkeys(("dns", "grpc", "grpc_tls", "serf_wan"), -1),
                "http": self.port,
                "serf_lan": free_port(),
                "server": free_port(),
            },
        }
        (place / "settings.json").write_text(json.dumps(settings))
        return [self.PROGRAM, "agent", "-config-file", place / "settings.json"]

    def answers(self):
        """Whether a session can be made."""
        request = urllib.request.Request(f"http://{self.address}/v1/session/create", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=SOON):
                return True
        except OSError:
            return False

    def contenders(self, _name):
        """How many sessions there are."""
        with urllib.request.urlopen(f"http://{self.address}/v1/session/list", timeout=SOON) as reply:
            return len(json.load(reply))


class KubeApi(Server):
    """kube-apiserver, over an etcd of its own, with one user, who may do everything."""

    UP = 90
    PROGRAM = pathlib.Path(os.environ["DLOCK_INTEROP"]) / "kube-apiserver"
    AUDIT = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]}],
    }

    def command(self, place):
        self.etcd = Etcd(place)
        self.kubeconfig, self.log = place / "kubeconfig", place / "audit.log"
        key, tokens, audit = place / "key", place / "tokens", place / "audit"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], stderr=subprocess.DEVNULL, check=True)
        tokens.write_text("token-of-the-tests,tester,1,system:masters\n")
        audit.write_text(json.dumps(self.AUDIT))
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": "apiserver.crt"}
        context = {"cluster": "test", "user": "test"}
        parts = {"cluster": cluster, "user": {"token": "token-of-the-tests"}, "context": context}
        lists = {f"{kind}s": [{"name": "test", kind: part}] for kind, part in parts.items()}
        self.kubeconfig.write_text(json.dumps({"current-context": "test", **lists}))
        options = {
            "etcd-servers": f"http://{self.etcd.address}",
            "secure-port": self.port,
            "bind-address": "127.0.0.1",
            "cert-dir": place,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-account-issuer": "https://test",
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": "ServiceAccount",
            "audit-policy-file": audit,
            "audit-log-path": self.log,
        }
        return [self.PROGRAM, *(f"--{name}={value}" for name, value in options.items())]

    @property
    def address(self):
        """What clients are told: the kubeconfig."""
        return str(self.kubeconfig)

    def answers(self):
        """Whether it is ready, and has made the namespace of the locks."""
        trust = ssl._create_unverified_context()
        url = f"https://127.0.0.1:{self.port}/api/v1/namespaces/default"
        request = urllib.request.Request(url, headers={"Authorization": "Bearer token-of-the-tests"})
        try:
            with urllib.request.urlopen(request, timeout=SOON, context=trust):
                return True
        except OSError:
            return False

    def looks(self):
        """How often the client of the library has read a lease."""
        lines = self.log.read_text().splitlines()
        return sum('"verb":"get"' in line and '"userAgent":"interop"' in line for line in lines)

    def end(self):
        super().end()
        self.etcd.end()


class ZooKeeper(Server):
    JAVA = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-cp"]
    CLASSES = "/etc/zookeeper/conf:/usr/share/java/zookeeper.jar"

    def command(self, place):
        lines = {
            "tickTime": 100,
            "maxSessionTimeout": 3_600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "clientPortAddress": "127.0.0.1",
            "clientPort": self.port,
            "dataDir": place,
        }
        (place / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self.kazoo = None
        return [*self.JAVA, self.CLASSES, "org.apache.zookeeper.server.quorum.QuorumPeerMain", place / "zoo.cfg"]

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as stream:
                stream.settimeout(0.2)
                stream.sendall(b"srvr")
                if b"Mode: " not in stream.recv(4096):
                    return False
        except OSError:
            return False
        self.kazoo = KazooClient(self.address, timeout=SOON)
        self.kazoo.start(SOON)
        return True

    def contenders(self, name):
        """How many hold the lock or wait for it."""
        try:
            return len(self.kazoo.get_children(f"/{name}"))
        except NoNodeError:
            return 0

    def end(self):
        if self.kazoo:
            self.kazoo.stop()
            self.kazoo.close()
        super().end()


class Memcached(Server):
    def command(self, _place):
        self.client = MemcacheClient(("127.0.0.1", self.port), timeout=SOON)
        return ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", self.port, "-U", "0"]

    def answers(self):
        try:
            return self.stores() == 0
        except (OSError, MemcacheError):
            return False

    def stores(self):
        """How many requests to store an item have come."""
        return self.client.stats()[b"cmd_set"]

    def end(self):
        self.client.close()
        super().end()


class Moto(Server):
    """DynamoDB as moto has it, with one table. Who asks has a key in its home."""

    PYTHON = os.environ["DLOCK_TEST_PYTHON"]
    UP = 30
    TABLE = {
        "TableName": "Locks",
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
    }

    def command(self, place):
        keys = place.parent / ".aws"
        keys.mkdir(exist_ok=True)
        (keys / "credentials").write_text("[default]\naws_access_key_id=key\naws_secret_access_key=secret\n")
        return [self.PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", self.port]

    def answers(self):
        """Whether it has made the table."""
        scope = "Credential=key/20260101/us-east-1/dynamodb/aws4_request"
        headers = {
            "X-Amz-Target": "DynamoDB_20120810.CreateTable",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=x",
        }
        request = urllib.request.Request(f"http://{self.address}/", json.dumps(self.TABLE).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=SOON):
                return True
        except OSError:
            return False

    def asked(self):
        """How many requests have come."""
        return sum('"POST /' in line for line in list(self.process.errors))


class MariaDb(Server):
    def command(self, place):
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={place / 'data'}", "--skip-test-db", "--user=root"]
        normal = "--auth-root-authentication-method=normal"
        # A server that starts removes the temporary tables of others from a directory that they share.
        own = {"env": {**os.environ, "TMPDIR": str(place)}}
        subprocess.run([*install, normal], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, **own)
        self.socket = place / "socket"
        names = [f"--datadir={place / 'data'}", f"--socket={self.socket}", f"--pid-file={place / 'pid'}"]
        network = ["--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"]
        quick = ["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", f"--tmpdir={place}"]
        return ["mariadbd", "--no-defaults", "--user=root", *names, *network, *quick]

    def ask(self, sql):
        words = ["mariadb", "--no-defaults", "--batch", "--skip-column-names", "--user=root", f"--socket={self.socket}"]
        return subprocess.run([*words, "--execute", sql], capture_output=True, text=True)

    def answers(self):
        return self.ask("CREATE DATABASE IF NOT EXISTS locks").returncode == 0

    def waiting(self):
        """How many sessions wait in GET_LOCK."""
        counted = self.ask("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")
        return int(counted.stdout)


class Postgres(Server):
    PROGRAMS = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), default=pathlib.Path("/usr/bin"))
    # It refuses to run as root.
    AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []

    def command(self, place):
        self.data = place / "data"
        self.data.mkdir()
        if self.AS_NOBODY:
            for folder in (pathlib.Path(tempfile.gettempdir()), place.parent, place):
                folder.chmod(folder.stat().st_mode | 0o011)
            shutil.chown(self.data, "nobody", "nogroup")
        make = [*self.AS_NOBODY, self.PROGRAMS / "initdb", "-U", "postgres", "-A", "trust", "--no-sync", "-D", self.data]
        subprocess.run(make, stdout=subprocess.DEVNULL, check=True)
        # No files elsewhere.
        apart = ["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"]
        network = ["-c", "listen_addresses=127.0.0.1", "-p", self.port]
        return [*self.AS_NOBODY, self.PROGRAMS / "postgres", "-D", self.data, *network, *apart, "-c", "fsync=off"]

    def ask(self, sql):
        where = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        words = ["psql", "--no-psqlrc", "--no-align", "--tuples-only", "--command", sql, where]
        return subprocess.run(words, capture_output=True, text=True)

    def answers(self):
        return self.ask("SELECT").returncode == 0

    def waiting(self):
        """How many sessions wait for an advisory lock."""
        counted = self.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return int(counted.stdout)

    def end(self):
        # By itself it gives its shared memory back.
        stop = [*self.AS_NOBODY, self.PROGRAMS / "pg_ctl", "stop", "-m", "immediate", "-s", "-D", self.data]
        subprocess.run(stop, capture_output=True)
        super().end()


class PostgresOfShedLock(Postgres):
    """With the table that the manual of ShedLock says."""

    TABLE = (
        "CREATE TABLE IF NOT EXISTS shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, "
        "locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))"
    )

    def __init__(self, *arguments):
        self.requests = set()
        super().__init__(*arguments)

    def answers(self):
        return self.ask(self.TABLE).returncode == 0

    def asked(self):
        """How many requests of ShedLock have been seen."""
        began = self.ask("SELECT query_start FROM pg_stat_activity WHERE application_name = 'ShedLock'")
        self.requests.update(began.stdout.split("\n"))
        return len(self.requests)


class MariaDbOfShedLock(MariaDb):
    """Likewise."""

    TABLE = (
        "CREATE TABLE IF NOT EXISTS locks.shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, "
        "locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, "
        "PRIMARY KEY (name))"
    )

    def answers(self):
        return super().answers() and self.ask(self.TABLE).returncode == 0

    def asked(self):
        """How many rows were to be changed."""
        return int(self.ask("SHOW GLOBAL STATUS LIKE 'Com_update'").stdout.split()[1])


class Dlock(Process):
    """`dlock run -b URL OPTIONS NAME -- WORDS`, or another of its commands, which run nothing."""

    BINARY = os.environ["DLOCK"]
    # Says that it runs, and ends with standard input.
    STAY = ("sh", "-c", "echo running; exec cat")

    def __init__(self, home, url, name, *options, command="run", run=STAY, token=None):
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "DLOCK_CONFIG": str(home / "config.toml")}
        if token:
            environment["DLOCK_TOKEN"] = token
        words = [self.BINARY, command, "-b", url, *options, name]
        super().__init__([*words, "--", *run] if command == "run" else words, environment, home)

    def await_running(self):
        equal(self.answer(), "running", f"the first line under {self}")
        return self

    def await_waiting(self):
        until(f"that it waits: {self}", lambda: self.tells("; waiting"))
        throughout(f"it waits: {self}", lambda: self.is_silent() and self.popen.poll() is None)
        return self

    def ends(self, status=0):
        equal(self.status(), status, f"the status of {self}")


class Client(Process):
    """A program that takes locks with a library, by the protocol that libraries.py tells."""

    def __init__(self, library, nodes):
        super().__init__([*library.command, *nodes])
        self.library, self.token = library, None
        ready = self.answer().split()
        equal(ready[0], "ready", f"the first line of {self}")
        self.version = " ".join(ready[1:])

    def _took(self):
        words = self.answer().split(maxsplit=1)
        if words[0] not in ("held", "busy"):
            raise Failure(f"{self.library.name}: {' '.join(words)}")
        self.token = int(words[1]) if len(words) > 1 else None
        return words[0] == "held"

    def tries(self, name, ttl=LONG):
        """Whether it gets the lock at once."""
        self.say("try", name, ttl)
        return self._took()

    def takes(self, name, ttl=LONG):
        equal(self.tries(name, ttl), True, f"{self.library.name} gets {name}")

    def begins_to_wait(self, name, server, ttl=LONG):
        """When this returns, it has been told that the lock is taken, and waits as the library does."""
        look = self.library.waits(server, name)
        self.say("wait", name, ttl, SOON * 2000)
        equal(self.answer(), "waiting", f"the answer of {self}")
        until(f"that {self.library.name} waits", look)
        throughout(f"{self.library.name} waits", self.is_silent)

    def gets_it(self):
        """Awaits the end of waiting, which has to be a good one."""
        equal(self._took(), True, f"{self.library.name} gets what it waited for")

    def gives(self, name, answer="unlocked"):
        self.say("unlock", name)
        equal(self.answer(), answer, f"{self.library.name} unlocks {name}")


def adopt_orphans():
    """What loses its parent becomes a child of the driver, which therefore can say what is left at the end."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def left_behind():
    """Waits for every child, and returns the command lines of those that do not end. They are killed."""
    left, end = [], time.monotonic() + SOON
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return left
        if pid == 0 and time.monotonic() > end:
            for child in pathlib.Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                left.append(" ".join(word.decode(errors="replace") for word in words).strip())
                os.kill(int(child), signal.SIGKILL)
            end = time.monotonic() + 1
        elif pid == 0:
            time.sleep(0.05)


def clear_all():
    """Ends everything, and lets nothing be started any more."""
    with Process.starting:
        ending, Process.alive = Process.alive, None
    for process in ending or ():
        process.end_session()


def locked(path):
    """Whether somebody has the `flock` of this file."""
    return subprocess.run([shutil.which("flock"), "--nonblock", path, "true"], check=False).returncode != 0
