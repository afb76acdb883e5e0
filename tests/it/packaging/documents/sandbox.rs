//! The machine of a reader, for the commands of the documents.

use std::cell::OnceCell;
use std::process::{Command, Output, Stdio};

use crate::support::cluster::Cluster;
use crate::support::consul::Consul;
use crate::support::dlock::BINARY;
use crate::support::dynamodb::Dynamo;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::MariaDb;
use crate::support::masters::Masters;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::postgres::Postgres;
use crate::support::process::Marker;
use crate::support::redis::{Options, Redis};
use crate::support::s3::S3;
use crate::support::sentinels::Sentinels;
use crate::support::tls::Flaw;
use crate::support::zookeeper::ZooKeeper;

/// The reader's own programs. Each records that it ran, in the file `ran`.
const SCRIPTS: &[(&str, &str)] = &[
    // Waits for the file `go`, so that a test determines how long a backup takes.
    ("backup.sh", "touch started; until [ -e go ]; do sleep 0.05; done; echo backup complete"),
    ("billing.sh", "redis-cli -u \"$PLAIN\" exists myapp:billing"),
    ("deploy.sh", "echo deployed"),
    ("dump.sh", "echo dump"),
    ("migrate.sh", "echo migrated"),
    ("poll.sh", "echo polled"),
    ("reindex.sh", "echo reindexed"),
    ("render.sh", "test \"$DLOCK_SLOT\" -lt 3"),
    ("report.sh", "echo report"),
    ("test.sh", "echo testing on \"$DLOCK_NAME\""),
];

/// A reader's machine: their scripts in the working directory, `dlock` in PATH, and their servers.
pub struct Sandbox {
    pub place: Place,
    pub plain: Redis,
    tls: Redis,
    with_users: Redis,
    masters: OnceCell<Lent<Masters>>,
    sentinels: OnceCell<Lent<Sentinels>>,
    cluster: OnceCell<Lent<Cluster>>,
    etcd: OnceCell<Lent<Etcd>>,
    mariadb: OnceCell<Lent<MariaDb>>,
    zookeeper: OnceCell<Lent<ZooKeeper>>,
    memcached: OnceCell<Memcached>,
    consul: OnceCell<Lent<Consul>>,
    s3: OnceCell<Lent<S3>>,
    dynamodb: OnceCell<Lent<Dynamo>>,
    kubernetes: OnceCell<Lent<Kubernetes>>,
    postgres: OnceCell<Lent<Postgres>>,
}

impl Sandbox {
    pub fn new() -> Self {
        let place = Place::new();
        std::fs::create_dir(place.path("bin")).unwrap();
        std::os::unix::fs::symlink(BINARY, place.path("bin/dlock")).unwrap();
        for (name, text) in SCRIPTS {
            place.script(name, &format!("#!/bin/sh\necho ./{name} >>ran\n{text}\n"));
        }
        place.write("redis.pass", "secret\n");
        let socket = place.arg("redis.sock");
        let user = ["--user", "dlock", "on", ">secret", "~*", "&*", "+@all"];
        Self {
            place,
            plain: Redis::start_with_args(&["--unixsocket", &socket]),
            tls: Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() }),
            with_users: Redis::start_with_args(&user),
            masters: OnceCell::new(),
            sentinels: OnceCell::new(),
            cluster: OnceCell::new(),
            etcd: OnceCell::new(),
            mariadb: OnceCell::new(),
            zookeeper: OnceCell::new(),
            memcached: OnceCell::new(),
            consul: OnceCell::new(),
            s3: OnceCell::new(),
            dynamodb: OnceCell::new(),
            kubernetes: OnceCell::new(),
            postgres: OnceCell::new(),
        }
    }

    /// A text of the documents, and its replacement here. The first match is used.
    fn replacements(&self) -> Vec<(&'static str, String)> {
        let repository = env!("CARGO_MANIFEST_DIR");
        let here = |name: &str| self.place.path(name).display().to_string();
        let host = |server: &Redis| format!("127.0.0.1:{}", server.port());
        vec![
            // The reader's servers and files.
            ("dlock@redis.example.com", format!("dlock@{}", host(&self.with_users))),
            ("rediss://redis.example.com", format!("rediss://{}", host(&self.tls))),
            ("redis://redis.example.com:6379", format!("redis://{}", host(&self.plain))),
            ("redis://redis.example.com", format!("redis://{}", host(&self.plain))),
            ("redis://redis ", format!("redis://{} ", host(&self.plain))),
            ("/etc/ssl/redis-ca.pem", self.tls.certificates().ca.display().to_string()),
            ("/etc/dlock/redis.pass", here("redis.pass")),
            ("/etc/dlock/me.pem", self.tls.certificates().client.display().to_string()),
            ("/etc/dlock/me.key", self.tls.certificates().client_key.display().to_string()),
            ("/run/redis/redis.sock", here("redis.sock")),
            ("/srv/locks", here("locks")),
            ("/srv/jobs", here("")),
            ("/var/lib/prometheus/node-exporter", here("home")),
            // The reader's group.
            ("-g jobs", format!("-g {}", nix::unistd::getegid())),
            // A release with only the binary in its archive; apt would change this system.
            ("https://github.com/OWNER/dlock/releases/download", format!("file://{}", self.releases())),
            (
                concat!("sudo install dlock-", env!("CARGO_PKG_VERSION"), "-*/dlock /usr/local/bin"),
                concat!("test -x dlock-", env!("CARGO_PKG_VERSION"), "-*/dlock").into(),
            ),
            (concat!("sudo apt install ./dlock_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"), "true".into()),
            // The program of the image is dlock.
            (
                concat!("docker run --rm ghcr.io/OWNER/dlock:", env!("CARGO_PKG_VERSION"), " "),
                "dlock ".into(),
            ),
            // Installing is a task of cargo; that there is a locked package to install is checked here.
            ("cargo install --locked --profile dist --path .", format!("test -f {repository}/Cargo.lock")),
        ]
    }

    /// The directory of the releases, with one of this version.
    fn releases(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let name = format!("dlock-{version}-{}-unknown-linux-musl", std::env::consts::ARCH);
        let release = self.place.path("releases").join(format!("v{version}"));
        if !release.exists() {
            std::fs::create_dir_all(release.join(&name)).unwrap();
            std::os::unix::fs::symlink(BINARY, release.join(&name).join("dlock")).unwrap();
            let archive = ["-czf", &format!("{name}.tar.gz"), &name];
            assert!(Command::new("tar").args(archive).current_dir(&release).status().unwrap().success());
        }
        self.place.path("releases").display().to_string()
    }

    pub fn replace(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // These servers are started only where they are used.
        let servers: [(&str, &dyn Fn() -> String); 3] = [
            ("redlock://", &|| self.masters.get_or_init(Masters::lent).url()),
            ("redis-sentinel://", &|| self.sentinels.get_or_init(Sentinels::lent).url()),
            ("redis-cluster://", &|| self.cluster.get_or_init(Cluster::lent).url()),
        ];
        for (scheme, url) in servers {
            if text.contains(&format!("{scheme}redis-1.example.com")) {
                let url = url();
                let hosts = url.strip_prefix(scheme).and_then(|rest| rest.split('/').next()).expect("hosts");
                for (index, host) in hosts.split(',').enumerate() {
                    text = text.replace(&format!("redis-{}.example.com", index + 1), host);
                }
            }
        }
        let members = "etcd://etcd-1,etcd-2,etcd-3";
        if text.contains(members) {
            text = text.replace(members, &self.etcd.get_or_init(Etcd::lent).url());
        }
        let table = "mysql://dlock@db.example.com/app";
        if text.contains(table) {
            let server = self.mariadb.get_or_init(|| {
                let server = MariaDb::lent();
                // That of another program.
                let table = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, \
                             locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL)";
                server.sql(table);
                server
            });
            text = text.replace(table, &server.url());
        }
        let ensemble = "zookeeper://zk-1,zk-2,zk-3";
        if text.contains(ensemble) {
            text = text.replace(ensemble, &self.zookeeper.get_or_init(ZooKeeper::lent).url());
        }
        let cache = "memcached://cache.example.com";
        if text.contains(cache) {
            text = text.replace(cache, &self.memcached.get_or_init(Memcached::start).url());
        }
        let agent = "consul://127.0.0.1:8500";
        if text.contains(agent) {
            text = text.replace(agent, &self.consul.get_or_init(Consul::lent).url());
        }
        let bucket = "s3://example-locks/jobs?region=eu-west-1";
        if text.contains(bucket) {
            text = text.replace(bucket, &self.s3.get_or_init(S3::lent).url());
        }
        let table = "dynamodb://example-locks/jobs?region=eu-west-1";
        if text.contains(table) {
            text = text.replace(table, &self.dynamodb.get_or_init(Dynamo::lent).url());
        }
        for namespace in ["k8s://jobs?context=production", "k8s://jobs"] {
            if text.contains(namespace) {
                text = text.replace(namespace, &self.kubernetes.get_or_init(Kubernetes::lent).url());
            }
        }
        for shown in ["postgres://db-1,db-2/app", "postgres://db-1/app", "postgres://dlock@db-1/app"] {
            if text.contains(shown) {
                let server = self.postgres.get_or_init(|| {
                    let server = Postgres::lent();
                    let table = "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP, locked_at \
                                 TIMESTAMP, locked_by VARCHAR(255))";
                    server.sql(table);
                    server
                });
                text = text.replace(shown, &server.url());
            }
        }
        for (shown, here) in self.replacements() {
            text = text.replace(shown, &here);
        }
        text
    }

    /// `/bin/sh` in the reader's directory, with little more environment than in cron.
    pub fn shell(&self) -> Command {
        let mut shell = Command::new("/bin/sh");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.place.path("bin").display());
        shell.env_clear().env("PATH", path).env("HOME", self.place.home()).env("PLAIN", self.plain.url());
        shell.env(Marker::VARIABLE, self.place.marker().value());
        shell.current_dir(self.place.path(".")).stdin(Stdio::null());
        shell
    }

    pub fn run(&self, command: &str) -> Output {
        self.shell().args(["-c", &self.replace(command)]).output().unwrap()
    }

    /// Installs a configuration as the user's.
    pub fn configure(&self, text: &str) {
        let file = self.place.home().join(".config/dlock/config.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, self.replace(text)).unwrap();
    }

    /// Which of the reader's scripts have run since the last call.
    pub fn take_ran(&self) -> String {
        let ran = self.place.read("ran");
        let _ = std::fs::remove_file(self.place.path("ran"));
        ran
    }
}

/// The scripts that a text starts, as they write themselves into `ran`.
pub fn scripts_of(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || "'\"()".contains(c));
    let scripts = words.filter(|word| word.starts_with("./") && word.ends_with(".sh"));
    scripts.map(|script| format!("{script}\n")).collect()
}

/// The output of a program without the notice that no backend is configured.
pub fn without_notice(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().filter(|line| !line.starts_with("dlock: no backend configured: ")).collect()
}
