//! The TCP sockets of the network of the test, as the kernel filters them (man 7 sock_diag).
//!
//! /proc/net/tcp lists all of them: also thousands that were closed a moment ago.

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use std::os::fd::AsRawFd;

/// A state of a connection (`TCP_ESTABLISHED`).
pub const ESTABLISHED: u32 = 1;
/// A state of a connection whose other side has closed it (`TCP_CLOSE_WAIT`).
pub const CLOSE_WAIT: u32 = 8;
/// The state of a socket that listens (`TCP_LISTEN`).
pub const LISTEN: u32 = 10;

/// The length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// The length of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Where `struct inet_diag_msg` has the number of the inode.
const INODE: usize = 68;

/// Returns the sockets in these states, with this own and this other port, as links in /proc/PID/fd name them.
pub fn sockets(states: &[u32], own: Option<u16>, other: Option<u16>) -> Vec<String> {
    let families = [libc::AF_INET, libc::AF_INET6];
    families.iter().flat_map(|family| of_family(*family, states, own, other)).collect()
}

fn of_family(family: i32, states: &[u32], own: Option<u16>, other: Option<u16>) -> Vec<String> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let netlink = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkSockDiag);
    let netlink = netlink.expect("a netlink socket");
    let request = request(family, states, own.unwrap_or_default(), other.unwrap_or_default());
    let kernel = NetlinkAddr::new(0, 0);
    sendto(netlink.as_raw_fd(), &request, &kernel, MsgFlags::empty()).expect("a request");
    let mut buffer = vec![0; 64 << 10];
    let mut found = Vec::new();
    loop {
        let length = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("a reply");
        let mut rest = &buffer[..length];
        while rest.len() >= HEADER {
            let (length, kind) = (number(rest, 0) as usize, i32::from(rest[4]) | i32::from(rest[5]) << 8);
            match kind {
                libc::NLMSG_DONE => return found,
                libc::NLMSG_ERROR => panic!("the kernel has no sockets to show (CONFIG_INET_DIAG)"),
                _ => found.push(format!("socket:[{}]", number(rest, HEADER + INODE))),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// A request of the kind `SOCK_DIAG_BY_FAMILY` for all sockets that fit; the port 0 is any.
fn request(family: i32, states: &[u32], own: u16, other: u16) -> Vec<u8> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let states: u32 = states.iter().map(|state| 1 << state).sum();
    let mut request = Vec::new();
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // The sequence number, and the port of the sender.
    request.extend([0; 8]);
    request.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(states.to_ne_bytes());
    request.extend(own.to_be_bytes());
    request.extend(other.to_be_bytes());
    request.resize(HEADER + REQUEST, 0);
    request
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
