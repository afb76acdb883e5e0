//! The clock of the host.

use crate::stores::host_clock::assert_the_hosts_clock_does_not_matter;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;

#[test]
fn the_hosts_clock_does_not_matter() {
    let consul = Consul::lent();
    assert_the_hosts_clock_does_not_matter(&[""], |_| Dlock::run().backend(consul.url()));
}
