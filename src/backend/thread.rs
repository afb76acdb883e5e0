//! Runs blocking work (a name look-up, a file system that may hang) in a separate thread.

use std::io;

use tokio::sync::oneshot;

use crate::process_limit::why_no_process;

/// Enough for a name service of the C library, and small where memory is limited.
const STACK: usize = 512 * 1024;

/// Runs `work` in a thread and waits for it. If the future is dropped, the thread runs on by itself.
///
/// # Errors
/// No thread can be started: the limit on processes or on memory is reached. (The runtime's own threads panic then.)
pub async fn in_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        let _ = sender.send(work());
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(work)
        .map_err(|error| io::Error::other(format!("cannot start a thread: {}", why_no_process(&error))))?;
    receiver.await.map_err(|_| io::Error::other("the thread failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_the_thread_is_returned() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        assert_eq!(runtime.block_on(in_thread("test", || 7)).ok(), Some(7));
    }
}
