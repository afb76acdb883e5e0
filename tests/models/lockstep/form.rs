//! The canonical form of a state: times relative to now, and tokens by their order.

use std::fmt::Write;
use std::time::Duration;

use super::model::State;

/// Writes the form.
pub(super) struct Form {
    text: String,
    now: u64,
    /// All numbers that are times in microseconds, or follow from one: fencing tokens and tickets.
    numbers: Vec<u64>,
}

impl Form {
    pub(super) fn of(state: &State) -> String {
        let mut raw = state.server.dump();
        let (ledger, now) = (&state.ledger, Duration::from_micros(state.now));
        write!(raw, "{} {} {:?}", ledger.fencing_token, ledger.ticket, ledger.history).unwrap();
        let left = |at: Option<Duration>| at.map(|at| (at.as_millis() as i64) - now.as_millis() as i64);
        for holder in &ledger.holders {
            writeln!(
                raw,
                "{} {} {} {:?} {:?} {} {} {:?} {:?} {:?} {:?} {}",
                holder.ticket,
                holder.family,
                holder.token,
                holder.mode,
                holder.slot,
                holder.fencing_token,
                holder.acquired_at,
                holder.ended_at,
                left(holder.kept_until),
                left(holder.lease_ends),
                holder.lease,
                holder.revoked.is_some(),
            )
            .unwrap();
        }
        for waiter in &ledger.waiters {
            let (called, ends) = (left(waiter.called), left(waiter.lease_ends));
            writeln!(raw, "{} {} {:?} {called:?} {ends:?}", waiter.ticket, waiter.token, waiter.mode)
                .unwrap();
        }
        writeln!(raw, "{:?} {:?} {:?}", ledger.success, ledger.freeze(), state.clients).unwrap();
        let mut form = Form { text: String::with_capacity(raw.len()), now: state.now, numbers: Vec::new() };
        for number in numbers(&raw).filter(|number| number.len() == 16) {
            form.numbers.push(number.parse().unwrap());
        }
        form.numbers.sort_unstable();
        form.numbers.dedup();
        form.write(&raw);
        form.text
    }

    fn write(&mut self, raw: &str) {
        let mut rest = raw;
        while let Some(at) = rest.find(|one: char| one.is_ascii_digit()) {
            let (before, from) = rest.split_at(at);
            let end = from.find(|one: char| !one.is_ascii_digit()).unwrap_or(from.len());
            let (number, after) = from.split_at(end);
            self.text.push_str(before);
            match number.len() {
                // In ms; those with 14 digits are that of the end of a freeze that has none.
                13 | 14 => {
                    let at: i64 = number.parse().unwrap();
                    write!(self.text, "@{}", at - (self.now / 1000) as i64).unwrap();
                }
                16 => {
                    let at: u64 = number.parse().unwrap();
                    let rank = self.numbers.binary_search(&at).unwrap();
                    write!(self.text, "#{rank}").unwrap();
                    if at >= self.now {
                        write!(self.text, "+{}", at - self.now).unwrap();
                    }
                }
                _ => self.text.push_str(number),
            }
            rest = after;
        }
        self.text.push_str(rest);
    }
}

fn numbers(raw: &str) -> impl Iterator<Item = &str> {
    raw.split(|one: char| !one.is_ascii_digit())
}
