//! Directories of servers as they are after the installation, which takes longer to make than to copy.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use tempfile::TempDir;

/// How the data of a server is made. Another version of the server and other words make another one.
#[derive(Debug, Hash)]
pub struct Installation {
    /// The Debian package that has the program.
    pub package: &'static str,
    /// The program of the server, which is of one version with the data.
    pub program: PathBuf,
    /// The command, in which `DATA` stands for the directory to be made, and `FIRST` for a file with the statements.
    pub command: Vec<String>,
    /// The statements that the server carries out first.
    pub first: &'static str,
}

/// Stands for the directory to be made.
pub const DATA: &str = "{data}";
/// Stands for the file with the first statements.
pub const FIRST: &str = "{first}";

impl Installation {
    /// Copies the data to a path that does not exist. It is made if no test run has needed it before.
    pub fn copy(&self, to: &Path) {
        cp(&self.template(), to);
    }

    /// Where the data is that no server uses.
    fn template(&self) -> PathBuf {
        // Several at a time may disturb each other.
        static MAKING: Mutex<()> = Mutex::new(());
        let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name());
        let one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if !template.exists() {
            let made = self.make();
            // It appears under its name only as a whole, however this process ends.
            let new = template.with_extension(std::process::id().to_string());
            // What a killed process of the same id has left.
            let _ = std::fs::remove_dir_all(&new);
            cp(&made.path().join("data"), &new);
            // Another test process may have been faster.
            if std::fs::rename(&new, &template).is_err() {
                std::fs::remove_dir_all(&new).expect("our own directory");
            }
        }
        drop(one_at_a_time);
        template
    }

    fn name(&self) -> String {
        let lookup = Command::new("sh").args(["-c", "command -v \"$0\""]).arg(&self.program).output();
        let found = String::from_utf8(lookup.expect("sh can be started").stdout).expect("a path in UTF-8");
        assert!(!found.is_empty(), "{} is missing: install {}", self.program.display(), self.package);
        let file = Path::new(found.trim_end()).metadata().expect("a program");
        let modified = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let mut hash = DefaultHasher::new();
        (self, file.len(), modified).hash(&mut hash);
        format!("{}-{:016x}", self.package, hash.finish())
    }

    fn make(&self) -> TempDir {
        let directory = tempfile::Builder::new().prefix("it-install-").tempdir().expect("a directory");
        // The server may run as another user.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(directory.path(), mode).expect("our own directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(path("first"), self.first).expect("our own file");
        let filled =
            self.command.iter().map(|word| word.replace(DATA, &path("data")).replace(FIRST, &path("first")));
        let words: Vec<String> = filled.collect();
        // A server of MariaDB that starts removes the temporary tables of others from a directory that they share.
        let made = Command::new(&words[0]).args(&words[1..]).env("TMPDIR", directory.path()).output();
        let made = made.unwrap_or_else(|error| panic!("{}: {error}: install {}", words[0], self.package));
        assert!(made.status.success(), "{words:?}: {}", String::from_utf8_lossy(&made.stderr));
        directory
    }
}

fn cp(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-a", "--reflink=auto"]).args([from, to]).status();
    assert!(copied.expect("cp can be started").success());
}
