//! Explains why the kernel creates no further process or thread.

use std::io;

use nix::errno::Errno;

/// Returns the reason of a failed `fork(2)` or `pthread_create(3)`. The text of `EAGAIN` does not say that a limit is
/// reached.
pub fn why_no_process(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => {
            "the limit on processes is reached (see ulimit -u, and pids.max of the cgroup)".to_owned()
        }
        Some(errno) => Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    }
}
