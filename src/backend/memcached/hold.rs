//! The value of an item: a hold, and the processes inside it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::ledger::Unreadable;
use crate::clock::wall_micros;
use crate::lock::{Claim, Holder, Identity, Revocation, Token};
use crate::random;

/// The format number of the values that are written.
const FORMAT: u32 = 1;

/// A hold. Its form as JSON is a stored format: fields are only added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    /// The format number, by which a value is known to be one of dlock.
    dlock: u32,
    /// Different for every grant. It proves nothing.
    pub id: String,
    members: Vec<Member>,
    /// The request to end the hold, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// A process inside the hold: the one that took it, or a nested one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    /// Proves ownership.
    token: String,
    /// The length of the lease that it requested last.
    lease_ms: u64,
    /// In ms since 1970, by the clock of its host: the server tells no time.
    acquired_at: u64,
    /// When its command ended, if the lock is then kept by `--min-hold`; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<u64>,
    /// For how long it is kept from then on.
    #[serde(default, skip_serializing_if = "is_zero")]
    kept_ms: u64,
    identity: Identity,
}

/// What remains of a hold that a member has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Nothing.
    Nothing,
    /// Other members.
    Others,
    /// This rest of the minimum hold time of a member, whether there are others or not.
    Rest(Duration),
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn now_ms() -> u64 {
    wall_micros() / 1000
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn since(then: u64) -> Duration {
    Duration::from_millis(now_ms().saturating_sub(then))
}

impl Hold {
    /// Returns the hold of a claim that is granted.
    pub fn of(claim: &Claim) -> Hold {
        let mut hold = Hold { dlock: FORMAT, id: random::id(), members: Vec::new(), revoked: None };
        hold.enter(claim);
        hold
    }

    /// Reads the value of an item; `None` if it is that of another program.
    ///
    /// # Errors
    /// It is in another format, which this dlock must not guess.
    pub fn parse(value: &[u8]) -> Result<Option<Hold>, Unreadable> {
        let value: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
        match value.get("dlock").and_then(serde_json::Value::as_u64).map(u32::try_from) {
            None => Ok(None),
            Some(Ok(FORMAT)) => serde_json::from_value(value).map(Some).map_err(|_| Unreadable::Damaged),
            Some(other) => Err(Unreadable::OtherFormat(other.unwrap_or(u32::MAX))),
        }
    }

    /// Returns the hold as it is stored.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }

    /// Returns whether the token is that of a member.
    pub fn has(&self, token: &Token) -> bool {
        self.members.iter().any(|member| member.token == token.reveal())
    }

    /// Returns whether it has no other member.
    pub fn is_of(&self, token: &Token) -> bool {
        self.members.len() == 1 && self.has(token)
    }

    /// Returns whether the claim's process runs inside it.
    pub fn is_around(&self, claim: &Claim) -> bool {
        claim.outer.iter().any(|outer| self.has(outer))
    }

    /// Adds the claim's process, or notes the lease that it requests now.
    pub fn enter(&mut self, claim: &Claim) {
        let token = claim.token.reveal();
        let lease_ms = milliseconds(claim.ttl);
        match self.members.iter_mut().find(|member| member.token == token) {
            Some(member) => member.lease_ms = lease_ms,
            None => self.members.push(Member {
                token: token.to_owned(),
                lease_ms,
                acquired_at: now_ms(),
                ended_at: None,
                kept_ms: 0,
                identity: claim.identity.clone(),
            }),
        }
    }

    /// Removes a member; with a `rest` that is to be kept, notes that its command has ended.
    pub fn leave(&mut self, token: &Token, rest: Duration) -> Left {
        let is_kept = !rest.is_zero() && self.revoked.is_none();
        for member in self.members.iter_mut().filter(|member| member.token == token.reveal() && is_kept) {
            (member.ended_at, member.kept_ms) = (Some(now_ms()), milliseconds(rest).max(1));
        }
        let is_left = |member: &Member| member.token == token.reveal() && !is_kept;
        self.members.retain(|member| !is_left(member));
        match self.running() {
            0 if self.revoked.is_some() => Left::Nothing,
            others => match (self.rest(), others) {
                (Duration::ZERO, 0) => Left::Nothing,
                (Duration::ZERO, _) => Left::Others,
                (rest, _) => Left::Rest(rest),
            },
        }
    }

    /// Returns the longest rest of a minimum hold time of members whose commands have ended.
    fn rest(&self) -> Duration {
        let ended = self.members.iter().filter_map(|member| Some((member.ended_at?, member.kept_ms)));
        let rests = ended.map(|(ended, kept)| Duration::from_millis(kept).saturating_sub(since(ended)));
        rests.max().unwrap_or_default()
    }

    /// Returns whether a request of one member concerns others: the lease must not become shorter for them.
    pub fn has_others(&self) -> bool {
        self.members.len() > 1 && self.running() > 0
    }

    /// Returns the number of members whose commands have not ended.
    pub fn running(&self) -> usize {
        self.members.iter().filter(|member| member.ended_at.is_none()).count()
    }

    /// Returns the members as they are shown; `ours` is the token of the request.
    pub fn holders(&self, remaining: Option<Duration>, ours: Option<&Token>) -> Vec<Holder> {
        let holder = |member: &Member| Holder {
            identity: Some(member.identity.clone()),
            age: Some(since(member.acquired_at)),
            acquired_at: Some(Duration::from_millis(member.acquired_at)),
            remaining,
            ended: member.ended_at.map(since),
            lease: Some(Duration::from_millis(member.lease_ms)),
            immortal: remaining.is_none(),
            revoked: self.revoked.clone(),
            ours: ours.is_some_and(|token| token.reveal() == member.token),
            digest: Some(self.id.clone()),
            ..Holder::default()
        };
        self.members.iter().map(holder).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::LockName;

    fn claim() -> Claim {
        Claim::new(LockName::new("x").expect("a name"), Token::random(), Duration::from_secs(30))
    }

    #[test]
    fn a_value_of_another_program_is_not_a_hold_and_one_of_another_format_is_refused() {
        for value in ["", "1", "worker-3", "{}", "[1]", r#"{"format":1}"#, r#"{"dlock":"x"}"#] {
            assert_eq!(Hold::parse(value.as_bytes()), Ok(None), "{value}");
        }
        assert_eq!(Hold::parse(br#"{"dlock":2,"later":[]}"#), Err(Unreadable::OtherFormat(2)));
        assert_eq!(Hold::parse(br#"{"dlock":1}"#), Err(Unreadable::Damaged));
        let hold = Hold::of(&claim());
        assert_eq!(Hold::parse(hold.to_json().as_bytes()), Ok(Some(hold)));
    }

    #[test]
    fn the_last_member_ends_the_hold_unless_a_minimum_hold_time_keeps_it() {
        let (outer, inner) = (claim(), claim());
        let mut hold = Hold::of(&outer);
        hold.enter(&inner);
        assert!(!hold.is_of(&outer.token) && hold.has(&inner.token));
        assert_eq!(hold.clone().leave(&outer.token, Duration::ZERO), Left::Others);
        let about_nine =
            |left| matches!(left, Left::Rest(rest) if rest.as_secs() == 8 || rest.as_secs() == 9);
        assert!(about_nine(hold.leave(&outer.token, Duration::from_secs(9))));
        assert_eq!(hold.running(), 1);
        assert!(about_nine(hold.clone().leave(&inner.token, Duration::ZERO)));
        hold.revoked = Some(Revocation { by: "root@h".into(), reason: None });
        assert_eq!(hold.leave(&inner.token, Duration::from_secs(9)), Left::Nothing);
    }
}
