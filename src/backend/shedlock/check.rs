//! Checks of the table and of the clocks.

use std::time::Duration;

use super::dialect::{Database, Row, missing, other_shape};
use super::{Clock, Gate, LONGEST_NAME, TABLE};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, no_lock, one_ttl, remedy_of};
use crate::exit::FailureKind;

/// How far the clocks of hosts may be apart before a doctor warns of it.
const TOLERABLE_OFFSET: Duration = Duration::from_secs(1);

impl Gate {
    /// Checks that the table is there, and one of ShedLock, once.
    ///
    /// # Errors
    /// It is not.
    pub async fn check<D: Database>(&mut self, db: &mut D) -> Result<(), StoreError> {
        if !self.is_checked {
            let columns = db.columns().await?;
            if columns.is_empty() {
                return Err(StoreError::Config(missing(D::DIALECT, TABLE)));
            }
            if let Some(found) = difference(&columns) {
                return Err(StoreError::Config(other_shape(
                    D::DIALECT,
                    &db.table().replace('"', ""),
                    &found,
                )));
            }
            self.is_checked = true;
        }
        Ok(())
    }

    /// Returns how far the host's clock is ahead of the server's, in milliseconds; behind, if it is negative.
    ///
    /// # Errors
    /// The server could not be queried.
    pub async fn offset<D: Database>(&self, db: &mut D) -> Result<i64, StoreError> {
        let since = D::DIALECT.between("TIMESTAMP '1970-01-01 00:00:00'", D::DIALECT.now());
        let sent = crate::clock::wall_micros();
        let rows = db.run(&format!("SELECT {since}")).await?;
        let middle = sent.midpoint(crate::clock::wall_micros()) / 1000;
        let server = rows.first().and_then(|row| row.first()?.as_deref()?.parse::<i64>().ok());
        let server = server.ok_or_else(|| StoreError::unanswered("the server returned no time"))?;
        Ok(i64::try_from(middle).unwrap_or(i64::MAX) - server)
    }

    /// Checks the table and the clocks, and returns whether locks can be taken.
    ///
    /// # Errors
    /// The server has stopped to respond.
    pub async fn examine<D: Database>(
        &mut self,
        db: &mut D,
        diagnosis: &Diagnosis,
    ) -> Result<bool, StoreError> {
        diagnosis.begin("shedlock");
        let is_missing = async |db: &mut D| db.columns().await.map_or(true, |columns| columns.is_empty());
        if diagnosis.creates()
            && is_missing(db).await
            && let Err(error) = db.create_table().await
        {
            // A run does not create it, so that it is not denied but missing.
            let kind = match error {
                StoreError::Denied(_) => FailureKind::Config,
                _ => error.failure_kind(),
            };
            let consequence = no_lock(kind);
            let remedy = remedy_of(&error);
            diagnosis.found(Finding::problem("shedlock", error.to_string(), consequence, remedy));
            return Ok(false);
        }
        if let Err(error) = self.check(db).await {
            let remedy = "run dlock doctor --init, or see dlock doctor --policy";
            diagnosis.found(Finding::refusal("shedlock", &error, remedy));
            return Ok(false);
        }
        diagnosis.found(Finding::ok(
            "shedlock",
            format!("the table {} exists, in the shape of ShedLock", db.table().replace('"', "")),
        ));
        let offset = self.offset(db).await?;
        let direction = if offset < 0 { "behind" } else { "ahead of" };
        let found = format!("this host's clock is {}ms {direction} the server's", offset.unsigned_abs());
        let is_off = offset.unsigned_abs() > TOLERABLE_OFFSET.as_millis() as u64;
        let (finding, answer) = match &self.clock {
            Clock::Server => (
                Finding::ok("clock", format!("{found}, which does not matter")),
                Answer::lease_of_server("1ms"),
            ),
            Clock::Host(_) if is_off => {
                let consequence = "a host whose clock is ahead takes locks before their leases have ended";
                let remedy = "synchronize the clocks of all hosts, or use clock=db-utc everywhere";
                (Finding::warning("clock", found, consequence, remedy), host_clock())
            }
            Clock::Host(_) => (Finding::ok("clock", found), host_clock()),
        };
        diagnosis.found(finding);
        diagnosis.answer(Question::LeaseClock, answer);
        Ok(true)
    }
}

fn host_clock() -> Answer {
    let ttl = one_ttl();
    let clock = "that of each host (clock=jvm-zone): if two differ by more than what is left of a lease, both may have the \
                 lock";
    let crash = format!(
        "the lock of a crashed holder is free {ttl} after its last renewal, and an hour later when daylight saving time ends"
    );
    Answer::new("hosts", format!("{clock}; {crash}"))
}

/// Returns what distinguishes the table with these columns from one of ShedLock.
fn difference(columns: &[Row]) -> Option<String> {
    let of = |name: &str| {
        let column =
            columns.iter().find(|column| column.first().is_some_and(|one| one.as_deref() == Some(name)));
        let text = |place: usize| column?.get(place)?.clone();
        (text(1).unwrap_or_else(|| "missing".to_owned()), text(2).as_deref() == Some("true"))
    };
    let is_text = |kind: &str, least: usize| {
        let length = kind.split_once('(').and_then(|(_, rest)| rest.split(')').next()?.parse().ok());
        let is_bounded = kind.starts_with("varchar") || kind.starts_with("character varying");
        matches!(kind, "text" | "character varying")
            || (is_bounded && length.is_some_and(|length: usize| length >= least))
    };
    // Without a zone, to the millisecond: by default, PostgreSQL counts microseconds and MySQL seconds.
    let is_time = |kind: &str| {
        let kind = kind
            .strip_suffix(" without time zone")
            .map_or(kind, |kind| if kind.contains('(') { kind } else { "timestamp(6)" });
        let kind = kind.strip_prefix("timestamp(").or(kind.strip_prefix("datetime("));
        kind.is_some_and(|digits| digits.starts_with(['3', '4', '5', '6']) && digits.ends_with(')'))
    };
    let (name, is_unique) = of("name");
    if !is_text(&name, LONGEST_NAME) {
        return Some(format!("name is {name}"));
    }
    if !is_unique {
        return Some("name is not unique".to_owned());
    }
    let by = of("locked_by").0;
    if !is_text(&by, 128) {
        return Some(format!("locked_by is {by}"));
    }
    let times = ["lock_until", "locked_at"].map(|name| (name, of(name).0));
    let wrong = times.into_iter().find(|(_, kind)| !is_time(kind));
    wrong.map(|(name, kind)| format!("{name} is {kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: [(&str, &str); 4]) -> Vec<Row> {
        let row = |(name, kind): (&str, &str)| {
            [name, kind, if name == "name" { "true" } else { "false" }]
                .map(|text| Some(text.to_owned()))
                .to_vec()
        };
        columns.map(row).to_vec()
    }

    #[test]
    fn a_table_of_another_shape_is_told_apart() {
        let postgres = [
            ("name", "character varying(64)"),
            ("lock_until", "timestamp without time zone"),
            ("locked_at", "timestamp(3) without time zone"),
            ("locked_by", "character varying(255)"),
        ];
        assert_eq!(difference(&table(postgres)), None);
        let mut mysql = [
            ("name", "varchar(64)"),
            ("lock_until", "timestamp(3)"),
            ("locked_at", "datetime(6)"),
            ("locked_by", "varchar(255)"),
        ];
        assert_eq!(difference(&table(mysql)), None);
        mysql[1].1 = "timestamp";
        assert_eq!(difference(&table(mysql)), Some("lock_until is timestamp".to_owned()));
        let mut zoned = postgres;
        zoned[2].1 = "timestamp with time zone";
        assert_eq!(difference(&table(zoned)), Some("locked_at is timestamp with time zone".to_owned()));
        let mut short = postgres;
        short[0].1 = "character varying(32)";
        assert_eq!(difference(&table(short)), Some("name is character varying(32)".to_owned()));
        let mut absent = table(postgres);
        absent.pop();
        assert_eq!(difference(&absent), Some("locked_by is missing".to_owned()));
        let mut repeated = table(postgres);
        repeated[0][2] = Some("false".to_owned());
        assert_eq!(difference(&repeated), Some("name is not unique".to_owned()));
    }
}
