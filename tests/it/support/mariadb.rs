//! Real MariaDB and MySQL servers.

pub mod fake;
mod product;
mod replication_group;

pub use self::product::Product;
pub use self::replication_group::{Mode, ReplicationGroup};
use super::SOON;
use super::daemon::{Daemon, Host};
use super::pool::{Group, Lent, lend_like};
use super::server::{await_no_clients, free_port};
use super::tls::Certificates;
use super::wait::until;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The database that tests use.
pub const DATABASE: &str = "locks";

/// Start options.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Which server it is.
    pub product: Product,
    /// Additional arguments.
    pub args: Vec<String>,
    /// Accept TLS with these certificates.
    pub certificates: Option<Certificates>,
    /// The host that it runs on.
    pub host: Host,
}

impl Plan {
    /// A server of today's version of MySQL.
    pub fn current() -> Self {
        Self { product: Product::Mysql9_7, ..Self::default() }
    }
}

/// A server with an empty database. Its user root has no password.
#[derive(Debug)]
pub struct MariaDb {
    plan: Plan,
    daemon: Daemon,
}

impl MariaDb {
    /// An empty one from the pool.
    pub fn lent() -> Lent<Self> {
        Self::lent_of(Product::System)
    }

    /// An empty one of this product from the pool.
    pub fn lent_of(product: Product) -> Lent<Self> {
        let plan = Plan { product, ..Plan::default() };
        lend_like(|server: &Self| server.plan.product == product, || Self::start_with(plan))
    }

    /// Starts one for one test only.
    pub fn start_with(plan: Plan) -> Self {
        // Another process may take the port between the check and the server's bind.
        for _ in 0..10 {
            let mut server = Self { daemon: daemon(&plan), plan: plan.clone() };
            server.daemon.launch();
            if server.await_up() {
                server.wipe();
                return server;
            }
        }
        panic!("{:?} does not start", plan.product)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.daemon.address().port()
    }

    /// Its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.daemon.directory().join("socket")
    }

    /// The URL of the database, for the user root.
    pub fn url(&self) -> String {
        let query = match &self.plan.certificates {
            Some(files) => format!("?ca_file={}", files.ca.display()),
            None => String::new(),
        };
        format!("mysql://root@127.0.0.1:{}/{DATABASE}{query}", self.port())
    }

    /// The process, to be stopped and resumed.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Carries out SQL in the database as root, and returns the rows, with a tab between two columns.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The same, or the error.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        self.run(&["--database", DATABASE], sql)
    }

    /// Carries out one statement, which may have statements in it.
    #[track_caller]
    pub fn statement(&self, sql: &str) {
        self.run(&["--database", DATABASE, "--delimiter", "//"], sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn run(&self, args: &[&str], sql: &str) -> Result<String, String> {
        let mut command = self.client("root");
        let output = command.args(args).args(["--execute", sql]).output().expect("mariadb of mariadb-client");
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).expect("UTF-8")),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The server's own client.
    pub fn client(&self, user: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--user", user, "--socket"]);
        command.arg(self.socket()).stdin(Stdio::null());
        command
    }

    /// Creates a user with this password and these rights, such as `ALL ON locks.*`.
    #[track_caller]
    pub fn create_user(&self, user: &str, password: &str, rights: &str) {
        self.sql(&format!(
            "DROP USER IF EXISTS {user}; CREATE USER {user} IDENTIFIED BY '{password}'; GRANT {rights} TO {user}"
        ));
    }

    /// A session of the server's own client, as root.
    pub fn session(&self) -> Session {
        let mut command = self.client("root");
        command.args(["--unbuffered", "--skip-reconnect", "--force", "--database", DATABASE]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("mariadb");
        let (to, from) = (client.stdin.take().expect("piped"), client.stdout.take().expect("piped"));
        let mut session = Session { client, to, from: BufReader::new(from), id: 0 };
        session.id = session.ask("SELECT CONNECTION_ID()").parse().expect("a number");
        session
    }

    /// Waits until nobody holds this lock of `GET_LOCK`.
    pub fn await_free(&self, name: &str) {
        let sql = format!("SELECT IS_FREE_LOCK('{name}')");
        until(SOON, "a free lock", || self.sql(&sql) == "1\n");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Kills it and starts it again, on the same port and with its data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        until(SOON, "the server's old port", || {
            self.daemon.launch();
            self.await_up()
        });
    }

    /// Removes all data and users. False when it does not reply.
    pub fn wipe(&self) -> bool {
        let users = self.run(&[], &self.plan.product.wiping());
        users.is_ok_and(|users| users.lines().all(|drop| self.run(&[], drop).is_ok()))
    }

    fn await_up(&mut self) -> bool {
        let mut ping = self.client("root");
        ping.args(["--execute", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemon.await_up(|| ping.status().expect("mariadb of mariadb-client").success())
    }
}

/// A session of another program.
#[derive(Debug)]
pub struct Session {
    client: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    id: u64,
}

impl Session {
    /// What the server calls its connection.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sends a statement.
    pub fn send(&mut self, sql: &str) {
        writeln!(self.to, "{sql};").expect("the client reads");
    }

    /// The next row.
    pub fn row(&mut self) -> String {
        let mut row = String::new();
        self.from.read_line(&mut row).expect("the client writes");
        row.trim_end_matches('\n').to_owned()
    }

    /// The row that a statement returns.
    pub fn ask(&mut self, sql: &str) -> String {
        self.send(sql);
        self.row()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn daemon(plan: &Plan) -> Daemon {
    let directory = tempfile::Builder::new().prefix("it-mariadb-").tempdir().expect("a directory");
    let data = directory.path().join("data");
    plan.product.installation().copy(&data);
    // Each server of MySQL gives itself an id when it has none.
    let _ = std::fs::remove_file(data.join("auto.cnf"));
    let port = free_port();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let mut args = vec![
        "--no-defaults".to_owned(),
        "--user=root".to_owned(),
        format!("--datadir={}", path("data")),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--socket={}", path("socket")),
        format!("--pid-file={}", path("pid")),
        format!("--tmpdir={}", path("data")),
        "--skip-name-resolve".to_owned(),
        "--innodb-buffer-pool-size=16M".to_owned(),
        // Written, but not synchronized with the disk, which is busy: nothing is lost when the process is killed.
        "--innodb-flush-log-at-trx-commit=2".to_owned(),
        "--innodb-flush-method=nosync".to_owned(),
    ];
    if let Some(files) = &plan.certificates {
        let options = [("ca", &files.ca), ("cert", &files.server), ("key", &files.server_key)];
        args.extend(options.map(|(option, file)| format!("--ssl-{option}={}", file.display())));
    }
    args.extend(plan.product.options());
    args.extend(plan.args.iter().cloned());
    Daemon::new(plan.product.package(), &plan.product.program().0, args, (&plan.host, port), directory)
}

impl Group for MariaDb {
    fn start() -> Self {
        Self::start_with(Plan::default())
    }

    fn renew(&mut self) -> bool {
        self.daemon.is_up() && await_no_clients(self.daemon.pid(), self.port()) && self.wipe()
    }
}
