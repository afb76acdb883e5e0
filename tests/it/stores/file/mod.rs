//! The store of files on one host.

pub mod lock_files;
pub mod network_file_systems;
mod older_state;
pub mod sidecar_files;
