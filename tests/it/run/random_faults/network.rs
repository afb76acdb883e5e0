//! Faults of the network between the clients and a server, by a proxy.

use crate::support::proxy::{Proxy, Way};

/// Causes one of four faults, from 0.
pub fn disturb(proxy: &Proxy, choice: usize) -> String {
    let fault = match choice {
        0 => {
            proxy.hold(Way::Down);
            "replies held"
        }
        1 => {
            proxy.drop_all(Way::Down);
            "replies lost"
        }
        2 => {
            proxy.hold_both();
            "nothing comes through"
        }
        _ => {
            proxy.refuse();
            "connections refused"
        }
    };
    fault.into()
}

/// Ends the fault.
pub fn heal(proxy: &Proxy) {
    proxy.heal();
    // Lost bytes are not sent again; a connection on which that happened is unusable.
    proxy.close();
    proxy.forget_flights();
}
