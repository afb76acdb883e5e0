//! Real PostgreSQL servers.

use super::daemon::{Daemon, Host};
use super::installation::{DATA, Installation};
use super::pool::{Group, Lent, lend_like};
use super::server::{free_port, other_version};
use super::tls::Certificates;
use super::wait::until;
use super::{SOON, process};
use nix::sys::signal::Signal;
use nix::unistd::{User, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use tokio_postgres::SimpleQueryMessage;

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Additional settings.
    pub settings: Vec<String>,
    /// Use TLS with these certificates.
    pub certificates: Option<Certificates>,
    /// The lines of its `pg_hba.conf`, instead of trusting everyone.
    pub access: Option<String>,
    /// The directory of the programs of another version than this system's.
    pub programs: Option<PathBuf>,
    /// The host that it runs on.
    pub host: Host,
}

impl Plan {
    /// A server of today's version.
    pub fn current() -> Self {
        let programs = other_version("postgresql-18").with_file_name("root/usr/lib/postgresql/18/bin");
        Self { programs: Some(programs), ..Self::default() }
    }

    /// The directory of its programs.
    fn programs(&self) -> PathBuf {
        self.programs.clone().unwrap_or_else(programs)
    }

    /// How the data of its servers is made.
    fn installation(&self) -> Installation {
        let mut command = as_nobody(&self.programs().join("initdb"));
        let options = ["-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8", "-D", DATA];
        command.extend(options.map(str::to_owned));
        Installation { package: PACKAGE, program: self.programs().join("postgres"), command, first: "" }
    }
}

/// A server, with a database of the name of its superuser.
#[derive(Debug)]
pub struct Postgres {
    daemon: Daemon,
    plan: Plan,
}

/// The server refuses to run as root.
const USER: &str = "nobody";
const PACKAGE: &str = "postgresql";

/// The words that run a program as this user, as long as the test process.
pub fn as_nobody(program: &Path) -> Vec<String> {
    let program = program.to_str().expect("a path in UTF-8");
    let words =
        ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL", program];
    words.map(str::to_owned).to_vec()
}

/// The directory of the newest version.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|entry| entry.path().join("bin")).max();
    newest.unwrap_or_else(|| panic!("postgres is missing: install the Debian package {PACKAGE}"))
}

fn run(words: &[String]) -> Output {
    Command::new(&words[0]).args(&words[1..]).output().expect("a program that can be started")
}

impl Postgres {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_with(Plan::default())
    }

    /// An empty one of this plan's version from the pool.
    pub fn lent_with(plan: Plan) -> Lent<Self> {
        let fits = |postgres: &Self| postgres.plan.programs == plan.programs;
        lend_like(fits, || Self::start_with(plan.clone()))
    }

    /// Starts one for one test only.
    pub fn start() -> Self {
        Self::start_with(Plan::default())
    }

    /// Starts one for one test only.
    pub fn start_with(plan: Plan) -> Self {
        let installation = plan.installation();
        Self::start_on(&plan, |data| installation.copy(data))
    }

    /// Starts a standby of this server, for one test only.
    pub fn standby(&self) -> Self {
        let from = self.port().to_string();
        let plan = Plan { programs: self.plan.programs.clone(), ..Plan::default() };
        Self::start_on(&plan, |data| {
            let mut words = as_nobody(&plan.programs().join("pg_basebackup"));
            let data = data.to_str().expect("a path in UTF-8");
            let options = ["-h", "127.0.0.1", "-p", &from, "-U", "postgres", "-D", data, "-R", "-c", "fast"];
            words.extend(options.map(str::to_owned));
            let made = run(&words);
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        })
    }

    fn start_on(plan: &Plan, make: impl Fn(&Path)) -> Self {
        // Another process may take the port between the check and the bind.
        for _ in 0..10 {
            let directory = directory();
            let data = directory.path().join("data");
            make(&data);
            let port = free_port();
            let mut words = as_nobody(&plan.programs().join("postgres"));
            let program = words.remove(0);
            words.extend(["-D".to_owned(), data.display().to_string(), "-p".to_owned(), port.to_string()]);
            let mut settings = vec![
                "listen_addresses=127.0.0.1".to_owned(),
                format!("unix_socket_directories={}", directory.path().display()),
                "fsync=off".to_owned(),
                // No files outside of the directory.
                "dynamic_shared_memory_type=mmap".to_owned(),
            ];
            if let Some(files) = &plan.certificates {
                let user = User::from_name(USER).expect("a user database").expect("nobody");
                let copy = |from: &Path, name: &str| {
                    let to = directory.path().join(name);
                    std::fs::copy(from, &to).expect("a certificate");
                    chown(&to, Some(user.uid), Some(user.gid)).expect("our own file");
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                    std::fs::set_permissions(&to, mode).expect("our own file");
                    to.display().to_string()
                };
                settings.push("ssl=on".to_owned());
                settings.push(format!("ssl_cert_file={}", copy(&files.server, "server.crt")));
                settings.push(format!("ssl_key_file={}", copy(&files.server_key, "server.key")));
                settings.push(format!("ssl_ca_file={}", copy(&files.ca, "ca.crt")));
            }
            settings.extend(plan.settings.iter().cloned());
            words.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
            if let Some(access) = &plan.access {
                std::fs::write(data.join("pg_hba.conf"), access).expect("our own file");
            }
            let daemon = Daemon::new(PACKAGE, program.as_ref(), words, (&plan.host, port), directory);
            let mut postgres = Self { daemon, plan: plan.clone() };
            if postgres.launch() {
                return postgres;
            }
        }
        panic!("PostgreSQL does not start")
    }

    fn launch(&mut self) -> bool {
        self.daemon.launch();
        let (port, socket) = (self.port(), self.daemon.directory().to_owned());
        self.daemon.await_up(|| try_sql(socket.to_str().unwrap_or_default(), port, "SELECT 1").is_ok())
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Its process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// The directory of its socket.
    pub fn directory(&self) -> &Path {
        self.daemon.directory()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let port = self.port();
        match &self.plan.certificates {
            None => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Some(files) => format!(
                "postgres://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={}",
                files.ca.display()
            ),
        }
    }

    /// Runs SQL as the superuser, and returns the values of all rows, separated by `|` and line feeds.
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Likewise.
    ///
    /// # Errors
    /// What `psql` says.
    pub fn try_sql(&self, text: &str) -> Result<String, String> {
        try_sql(self.directory().to_str().expect("a path in UTF-8"), self.port(), text)
    }

    /// Ends it at once; its port is closed then.
    pub fn kill(&mut self) {
        if self.daemon.is_up() {
            // By itself it removes the memory that it shares with its processes, which live on for a moment.
            process::send(self.daemon.pid(), Signal::SIGCONT);
            process::send(self.daemon.pid(), Signal::SIGQUIT);
            let pid = self.daemon.pid();
            until(SOON, "the end of PostgreSQL", || !process::alive(pid));
        }
        self.daemon.kill();
    }

    /// Kills it, and starts it again with its data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        until(SOON, "the old port", || self.launch());
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t");
    }
}

/// A directory of the user that the server runs as.
fn directory() -> TempDir {
    let directory = tempfile::Builder::new().prefix("it-postgres-").tempdir().expect("a directory");
    let user = User::from_name(USER).expect("a user database").expect("nobody");
    chown(directory.path(), Some(user.uid), Some(user.gid)).expect("our own directory");
    directory
}

/// Runs statements in a session of its own. Returns the values of all rows as text, those of one row separated by `|`. A
/// session of psql would take longer than most statements.
fn try_sql(host: &str, port: u16, text: &str) -> Result<String, String> {
    let socket = Path::new(host).join(format!(".s.PGSQL.{port}"));
    let session = async {
        let stream = tokio::net::UnixStream::connect(&socket).await.map_err(|error| error.to_string())?;
        let mut configuration = tokio_postgres::Config::new();
        configuration.user("postgres").dbname("postgres");
        let connected = configuration.connect_raw(stream, tokio_postgres::NoTls).await;
        let (client, connection) = connected.map_err(|error| format!("{error:?}"))?;
        let replies = client.simple_query(text);
        tokio::select! {
            replies = replies => replies.map_err(|error| format!("{error:?}")),
            ended = connection => Err(format!("the connection has ended: {ended:?}")),
        }
    };
    // The test may be one itself that a runtime drives, and a thread has one runtime at a time.
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(session)
    };
    let messages = std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))?;
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let values: Vec<&str> =
                (0..row.len()).map(|column| row.get(column).unwrap_or_default()).collect();
            Some(values.join("|"))
        }
        _ => None,
    };
    let rows: Vec<String> = messages.iter().filter_map(row).collect();
    Ok(rows.join("\n").trim_end().to_owned())
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Group for Postgres {
    fn start() -> Self {
        Self::start()
    }

    fn renew(&mut self) -> bool {
        // A process that has ended may have left a session, for a moment, and a session its locks.
        const WIPE: &str = "DO $$ BEGIN FOR n IN 1..100 LOOP \
             IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()) \
             AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory') THEN RETURN; END IF; \
             PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; RAISE 'it has clients'; END $$; \
             SET client_min_messages = warning; DROP TABLE IF EXISTS dlock_locks, shedlock";
        self.daemon.is_up() && self.try_sql(WIPE).is_ok()
    }
}
