//! `dlock doctor` on Consul.

use crate::run::faults::shim::{Clocks, HOUR};
use crate::support::consul::Consul;
use crate::support::doctor::assert_found;
use crate::support::place::Place;

#[test]
fn a_clock_that_is_wrong_is_a_warning() {
    let (place, consul) = (Place::new(), Consul::lent());
    let clocks = Clocks::new(&place);
    clocks.set_wall(HOUR);
    let examined = clocks.of(place.bare().args(["doctor", "--json", "-b", &consul.url()])).output();
    // It is less by what the agent does not show of its time, and by the time until it has replied.
    assert_found(&examined, "warning", "clock", "this host's clock is ahead of the agent's by at least 59m5");
}
