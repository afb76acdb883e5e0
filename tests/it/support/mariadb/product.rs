//! The products that speak the protocol: how each is installed, started and wiped.

use super::DATABASE;
use crate::support::installation::{DATA, FIRST, Installation};
use crate::support::server::other_version;
use std::path::{Path, PathBuf};

/// Less than it has by default, which is copied for each server.
const SMALL_LOG: &str = "--innodb-log-file-size=32M";

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
            false => &[SMALL_LOG],
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

    /// How its data directory is made. Its user root has no password.
    pub(super) fn installation(self) -> Installation {
        let command = if self.is_mysql() { self.initialize() } else { self.install_db() };
        // The installation of MySQL creates root@localhost alone.
        let first = "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";
        Installation { package: self.package(), program: self.program().0, command, first }
    }

    fn install_db(self) -> Vec<String> {
        let base = self.program().1.map(|base| base.display().to_string());
        let script = base
            .as_ref()
            .map_or("mariadb-install-db".into(), |base| format!("{base}/bin/mariadb-install-db"));
        let mut words = vec![script, "--no-defaults".into(), format!("--datadir={DATA}")];
        words.extend(base.map(|base| format!("--basedir={base}")));
        let options =
            ["--auth-root-authentication-method=normal", "--skip-test-db", "--user=root", SMALL_LOG];
        words.extend(options.map(str::to_owned));
        words
    }

    fn initialize(self) -> Vec<String> {
        let mut words = vec![self.program().0.display().to_string()];
        words.extend(["--no-defaults", "--initialize-insecure", "--user=root"].map(str::to_owned));
        words.extend(self.options());
        words.extend([format!("--datadir={DATA}"), format!("--init-file={FIRST}")]);
        words
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
