//! A MariaDB, for the scheme mysql.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::{Server, eventually, free_port, is_root, run, succeeds};

const PACKAGE: &str = "mariadb-server";

pub struct MariaDb {
    port: u16,
    _server: Server,
}

impl MariaDb {
    pub fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let data = dir.join("mariadb");
        let user: &[&str] = if is_root() { &["--user=root"] } else { &[] };
        let datadir = format!("--datadir={}", data.display());
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        run(install.arg(&datadir).args(user), PACKAGE)?;
        let init = dir.join("mariadb.sql");
        std::fs::write(&init, "CREATE DATABASE locks;\n")?;
        let port = free_port()?;
        let mut server = Command::new("mariadbd");
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"]).args(user);
        server.args([datadir, format!("--port={port}"), format!("--init-file={}", init.display())]);
        server.args(["socket", "pid-file"].map(|file| format!("--{file}={}", data.join(file).display())));
        server.args(["--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync"]);
        let mariadb = MariaDb { port, _server: Server::spawn(&mut server, PACKAGE)? };
        let port = port.to_string();
        let mut ping = Command::new("mariadb-admin");
        ping.args(["--no-defaults", "--user=root", "--host=127.0.0.1", "--port", &port, "status"]);
        eventually("MariaDB", || succeeds(&mut ping))?;
        Ok(mariadb)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/locks", self.port)
    }
}
