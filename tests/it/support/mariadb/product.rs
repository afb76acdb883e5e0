//! The products that speak the protocol: how each is installed, started and wiped.

use super::DATABASE;
use crate::support::server::other_version;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A product and its version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Product {
    /// The MariaDB of this system.
    #[default]
    System,
    MariaDb11_8,
    Mysql9_7,
}

impl Product {
    pub(super) fn is_mysql(self) -> bool {
        self == Self::Mysql9_7
    }

    /// The Debian package that has the program.
    pub(super) fn package(self) -> &'static str {
        if self.is_mysql() { "mysql-server-core" } else { "mariadb-server" }
    }

    /// The program, and the `usr` directory that it was unpacked to unless it is this system's.
    pub(super) fn program(self) -> (PathBuf, Option<PathBuf>) {
        let unpacked = |name: &str| {
            let server = other_version(name);
            let base = server.with_file_name("root").join("usr");
            (server, Some(base))
        };
        match self {
            Self::System => ("mariadbd".into(), None),
            Self::MariaDb11_8 => unpacked("mariadb-11.8"),
            Self::Mysql9_7 => unpacked("mysql-9.7"),
        }
    }

    /// The options that only this product has, or has under another name.
    pub(super) fn options(self) -> Vec<String> {
        let own: &[&str] = match self.is_mysql() {
            false => &["--innodb-log-file-size=32M"],
            true => {
                &["--innodb-redo-log-capacity=32M", "--mysqlx=OFF", "--secure-file-priv=", "--sync-binlog=0"]
            }
        };
        let own = own.iter().map(|option| (*option).to_owned());
        own.chain(self.program().1.into_iter().flat_map(|base| self.places(&base))).collect()
    }

    /// Where its own files are.
    fn places(self, base: &Path) -> Vec<String> {
        let (messages, plugins) = match self.is_mysql() {
            false => ("share/mariadb", "lib/mysql/plugin"),
            true => ("share/mysql", "lib/mysql/plugin"),
        };
        let place = |option: &str, path: &Path| format!("--{option}={}", path.display());
        vec![
            place("basedir", base),
            place("lc-messages-dir", &base.join(messages)),
            place("plugin-dir", &base.join(plugins)),
        ]
    }

    /// A data directory as it is after the installation. Its user root has no password.
    pub(super) fn installed(self) -> TempDir {
        // Several at a time may disturb each other.
        for _ in 0..5 {
            let directory = tempfile::Builder::new().prefix("it-mariadb-").tempdir().expect("a directory");
            let mut command = if self.is_mysql() { self.initialize(&directory) } else { self.install_db() };
            command.arg(format!("--datadir={}", directory.path().join("data").display())).arg("--user=root");
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
            let status = status.unwrap_or_else(|error| panic!("{}: {error}", self.package()));
            if status.success() {
                return directory;
            }
        }
        panic!("a database of {self:?} cannot be created")
    }

    fn install_db(self) -> Command {
        let base = self.program().1;
        let script =
            base.as_ref().map_or("mariadb-install-db".into(), |base| base.join("bin/mariadb-install-db"));
        let mut command = Command::new(script);
        command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        command.args(base.map(|base| format!("--basedir={}", base.display())));
        command
    }

    fn initialize(self, directory: &TempDir) -> Command {
        let init = directory.path().join("init.sql");
        // The installation creates root@localhost alone.
        let root = "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";
        std::fs::write(&init, root).expect("our own file");
        let mut command = Command::new(self.program().0);
        command.args(["--no-defaults", "--initialize-insecure"]).args(self.options());
        command.arg(format!("--init-file={}", init.display()));
        command
    }

    /// The statements that remove all data, and return those that remove all users but root.
    pub(super) fn wiping(self) -> String {
        let data = format!("DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE};");
        match self.is_mysql() {
            false => format!(
                "SET GLOBAL read_only = 0; {data} DELETE FROM mysql.global_priv WHERE User NOT IN ('root', 'mariadb.sys'); \
                 DELETE FROM mysql.db; FLUSH PRIVILEGES"
            ),
            true => format!(
                "SET GLOBAL super_read_only = 0; SET GLOBAL read_only = 0; {data} SELECT CONCAT('DROP USER ', QUOTE(user), '@', \
                 QUOTE(host)) FROM mysql.user WHERE user <> 'root' AND user NOT LIKE 'mysql.%'"
            ),
        }
    }
}
