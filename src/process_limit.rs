//! Why the kernel gives us no further process or thread, in words.

use std::io;

use nix::errno::Errno;

/// What `fork(2)` or `pthread_create(3)` failed with. `EAGAIN` does not tell by its name that a limit is reached.
pub fn why_no_process(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => {
            "the limit on processes is reached (see ulimit -u, and pids.max of the cgroup)".to_owned()
        }
        Some(errno) => Errno::from_raw(errno).desc().to_lowercase(),
        None => error.to_string(),
    }
}
