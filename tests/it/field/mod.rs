//! Redis as it is in the field: other versions, sockets, offerings that leave something out, and the states of servers.

mod managed;
mod sockets;
mod states;
mod versions;
