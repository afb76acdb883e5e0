//! Finds the file of a command as `execvp(3)` does, before the lock is acquired: a command that PATH or mode bits rule
//! out should not cost a lock.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, execve, faccessat};

/// The search path of `execvp(3)` if PATH is not set (glibc).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The bytes of a length on the pipe.
const LENGTH: usize = size_of::<usize>();

/// A command that exists and appears to be executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: CString,
    argv: Vec<CString>,
}

/// Why a command cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// No such file (127).
    #[error("{command}: command not found")]
    NotFound {
        /// As typed.
        command: String,
    },
    /// It exists but cannot be executed (126).
    #[error("{command}: cannot be executed: {why}")]
    NotExecutable {
        /// As typed.
        command: String,
        /// The reason.
        why: String,
    },
}

impl Program {
    /// Finds a command; `search` is PATH.
    ///
    /// # Errors
    /// It does not exist, or may not be executed.
    pub fn find(argv: &[OsString], search: Option<&OsStr>) -> Result<Program, ProgramError> {
        let name = argv.first().map(OsString::as_os_str).unwrap_or_default();
        let command = name.to_string_lossy().into_owned();
        let not_found = || ProgramError::NotFound { command: command.clone() };
        let not_executable = |errno: Errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => ProgramError::NotFound { command: command.clone() },
            _ => ProgramError::NotExecutable { command: command.clone(), why: errno.desc().to_lowercase() },
        };
        let path = if name.is_empty() {
            return Err(not_found());
        } else if name.as_bytes().contains(&b'/') {
            check(Path::new(name)).map_err(not_executable)?;
            Path::new(name).to_owned()
        } else {
            let search = search.unwrap_or(OsStr::new(DEFAULT_PATH));
            let mut first_error = None;
            std::env::split_paths(search)
                .map(|directory| {
                    if directory.as_os_str().is_empty() {
                        Path::new(".").join(name)
                    } else {
                        directory.join(name)
                    }
                })
                .find(|candidate| match check(candidate) {
                    Ok(()) => true,
                    Err(Errno::ENOENT | Errno::ENOTDIR) => false,
                    Err(errno) => {
                        first_error.get_or_insert(errno);
                        false
                    }
                })
                .ok_or_else(|| first_error.map_or_else(not_found, not_executable))?
        };
        let nul = |_| ProgramError::NotExecutable {
            command: command.clone(),
            why: "a NUL byte in an argument".into(),
        };
        Ok(Program {
            path: CString::new(path.as_os_str().as_bytes()).map_err(nul)?,
            argv: argv
                .iter()
                .map(|arg| CString::new(arg.as_bytes()))
                .collect::<Result<_, _>>()
                .map_err(nul)?,
        })
    }

    /// Encodes the program for the pipe to the parked command: the length of the rest, then the path and each argument,
    /// each with its NUL byte. A command line may have megabytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let words = || std::iter::once(&self.path).chain(&self.argv).map(|word| word.as_bytes_with_nul());
        let length: usize = words().map(<[u8]>::len).sum();
        let mut bytes = Vec::with_capacity(LENGTH + length);
        bytes.extend_from_slice(&length.to_le_bytes());
        words().for_each(|word| bytes.extend_from_slice(word));
        bytes
    }

    /// Removes an encoded program from the beginning of the buffer: `None` if it is not complete, `Some(None)` if it cannot
    /// be read.
    pub(super) fn take_from(buffer: &mut Vec<u8>) -> Option<Option<Program>> {
        let length = usize::from_le_bytes(buffer.get(..LENGTH)?.try_into().ok()?);
        let words = buffer.get(LENGTH..LENGTH.saturating_add(length))?;
        let mut words =
            words.split_inclusive(|byte| *byte == 0).map(|word| CString::from_vec_with_nul(word.to_vec()));
        let program = words.next().and_then(Result::ok).zip(words.collect::<Result<_, _>>().ok());
        buffer.drain(..LENGTH + length);
        Some(program.map(|(path, argv)| Program { path, argv }))
    }

    /// Replaces the process by the program; returns the error if that fails. A text file without `#!` is run by
    /// `/bin/sh`, as `execvp(3)` does; any other format that the kernel does not know is not run.
    pub fn exec(&self, env: &[CString]) -> Errno {
        let Err(errno) = execve(&self.path, &self.argv, env);
        if errno != Errno::ENOEXEC || !self.looks_like_text() {
            return errno;
        }
        let shell = c"/bin/sh".to_owned();
        let mut argv = vec![shell.clone(), self.path.clone()];
        argv.extend(self.argv.iter().skip(1).cloned());
        let Err(errno) = execve(&shell, &argv, env);
        errno
    }

    /// Returns the error to report after [`Program::exec`] failed: 126, unless the file itself has gone meanwhile.
    pub fn exec_failure(&self, errno: i32) -> ProgramError {
        let command = self.argv.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(self.path.as_bytes()));
        match Errno::from_raw(errno) {
            Errno::ENOENT if !path.exists() => ProgramError::NotFound { command },
            Errno::ENOENT => {
                ProgramError::NotExecutable { command, why: "its interpreter was not found".into() }
            }
            errno => ProgramError::NotExecutable { command, why: errno.desc().to_lowercase() },
        }
    }

    /// Returns the file name without directories, as displayed to others.
    pub fn file_name(&self) -> String {
        let path = Path::new(OsStr::from_bytes(self.path.as_bytes()));
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns whether a file without `#!` may be a script, by the rule that shells use: no NUL byte at its beginning.
    fn looks_like_text(&self) -> bool {
        let mut start = [0u8; 256];
        let read =
            File::open(OsStr::from_bytes(self.path.as_bytes())).and_then(|mut file| file.read(&mut start));
        read.is_ok_and(|count| !start[..count].contains(&0))
    }
}

/// Checks whether the file may be executed with the effective user and group ids.
fn check(path: &Path) -> Result<(), Errno> {
    faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS)?;
    if path.is_dir() { Err(Errno::EISDIR) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(command: &str, search: Option<&str>) -> Result<String, ProgramError> {
        Program::find(&[command.into()], search.map(OsStr::new))
            .map(|program| program.path.to_string_lossy().into_owned())
    }

    #[test]
    fn a_program_passes_the_pipe() {
        let argv = ["sh", "", "\u{e9} b", "-c"].map(OsString::from);
        let program = Program::find(&argv, Some(OsStr::new("/bin"))).expect("a shell");
        let bytes = program.to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(Program::take_from(&mut bytes[..length].to_vec()), None, "{length} bytes");
        }
        let mut buffer = [&bytes[..], b"rest"].concat();
        assert_eq!(Program::take_from(&mut buffer), Some(Some(program)));
        assert_eq!(buffer, b"rest");
        for damaged in [&[0u8; LENGTH][..], &[&1usize.to_le_bytes()[..], b"x"].concat()] {
            assert_eq!(Program::take_from(&mut damaged.to_vec()), Some(None));
        }
    }

    #[test]
    fn commands_are_found_as_execvp_finds_them() {
        assert_eq!(find("sh", Some("/nonexistent:/bin")), Ok("/bin/sh".into()));
        assert_eq!(find("sh", None), Ok("/bin/sh".into()));
        assert_eq!(find("/bin/sh", Some("")), Ok("/bin/sh".into()));
        assert_eq!(find("", None), Err(ProgramError::NotFound { command: "".into() }));
        assert_eq!(
            find("no-such-command", Some("/bin")),
            Err(ProgramError::NotFound { command: "no-such-command".into() })
        );
        assert!(matches!(find("/etc/passwd", None), Err(ProgramError::NotExecutable { .. })));
        assert!(matches!(find("/etc", None), Err(ProgramError::NotExecutable { .. })));
        assert!(matches!(find("/etc/passwd/x", None), Err(ProgramError::NotFound { .. })));
    }
}
