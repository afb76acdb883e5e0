//! Work that blocks (looking a name up, a file system that may not answer), in a thread of its own.

use std::io;

use tokio::sync::oneshot;

use crate::process_limit::why_no_process;

/// Enough for a name service of the C library, and little where memory is limited.
const STACK: usize = 512 * 1024;

/// Runs `work` in a thread and waits for it. Dropping the future leaves the thread to itself.
///
/// # Errors
/// No thread can be had: the limit on processes or on memory is reached. The runtime's own threads panic then.
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
    fn the_answer_of_the_thread_is_returned() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        assert_eq!(runtime.block_on(in_thread("test", || 7)).ok(), Some(7));
    }
}
