//! The descriptors that dlock was started with, beyond the standard ones. They belong to the command: if one is the
//! write end of a pipe, its reader must see end-of-file when the command closes it.

use std::ffi::OsString;
use std::os::fd::RawFd;

use super::sys;

/// The end of the search without `/proc`.
const SEARCH_END: RawFd = 4096;

/// Returns the descriptors above 2 that are open now. Before dlock has opened any, these are the inherited ones.
pub(super) fn inherited() -> Vec<RawFd> {
    let mut open = open_descriptors();
    // The listing itself used one.
    open.retain(|fd| *fd > 2 && sys::closes_on_exec(*fd) == Some(false));
    open
}

/// Closes inherited descriptors in this process, except those in `kept`.
pub(super) fn close_inherited(inherited: &[RawFd], kept: &[RawFd]) {
    for fd in inherited.iter().filter(|fd| !kept.contains(fd)) {
        let _ = nix::unistd::close(*fd);
    }
}

fn open_descriptors() -> Vec<RawFd> {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => {
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
        Err(_) => (3..SEARCH_END).collect(),
    }
}

/// Returns the descriptors named in dlock's own arguments (`--report /dev/fd/3`): the options before the command, and
/// the variables that name a file. dlock needs those, too.
pub(super) fn named_in(arguments: &[OsString]) -> Vec<RawFd> {
    let own = arguments.iter().take_while(|argument| *argument != "--").cloned();
    let variables = ["DLOCK_BACKEND", "DLOCK_CONFIG"].into_iter().filter_map(std::env::var_os);
    own.chain(variables).flat_map(|text| named_in_text(&text.to_string_lossy())).collect()
}

fn named_in_text(text: &str) -> Vec<RawFd> {
    let number = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    ["/dev/fd/", "/proc/self/fd/"]
        .into_iter()
        .flat_map(|directory| text.match_indices(directory).map(move |(at, _)| at + directory.len()))
        .filter_map(|at| number(&text[at..]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_named_by_paths_in_front_of_the_command() {
        let words =
            ["dlock", "run", "--report=/dev/fd/5", "-b", "redis://h/0?password_file=/proc/self/fd/63&x"];
        let words: Vec<OsString> =
            words.into_iter().chain(["x", "--", "cat", "/dev/fd/7"]).map(Into::into).collect();
        assert_eq!(named_in(&words), [5, 63]);
    }
}
