//! The queue: waiters are served first come, first served, even if some die, are stopped, or miss their notification.

#[cfg(feature = "redis")]
mod crashed_hosts;
mod crowd;
mod dead_waiters;
mod departures;
pub mod fixture;
#[cfg(feature = "redis")]
mod limited_servers;
#[cfg(feature = "redis")]
mod lost_pushes;
mod many_waiters;
#[cfg(feature = "redis")]
mod reconnects;
#[cfg(feature = "redis")]
mod request_rate;
#[cfg(feature = "redis")]
mod termination;
mod wait_expiry;
mod wait_line;
mod wait_messages;
