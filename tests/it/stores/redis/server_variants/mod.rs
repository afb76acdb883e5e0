//! Variants of Redis in use: other versions, sockets, servers with missing commands, and the states of servers.

mod managed;
mod sockets;
mod states;
mod versions;
