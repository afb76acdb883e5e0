//! The queue: waiters are served first come, first served, even if some die, are stopped, or miss their notification.

mod crashed_hosts;
mod crowd;
mod dead_waiters;
mod departures;
pub mod fixture;
mod limited_servers;
mod lost_pushes;
mod reconnects;
mod request_rate;
mod scale;
mod termination;
mod wait_expiry;
mod wait_line;
mod wait_messages;
