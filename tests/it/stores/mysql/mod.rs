//! What is special to MySQL and MariaDB.

mod connections;
mod doctor;
mod errors;
mod failover;
mod faults;
mod get_lock;
mod hostile;
mod passwords;
mod planted;
mod replication_group;
pub mod shedlock;
mod users;
mod wake_up;
