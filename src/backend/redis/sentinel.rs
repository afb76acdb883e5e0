//! The master of a service, as its sentinels know it.
//!
//! They are asked before every connection, and beside every question that comes a while after: a master that was
//! replaced and does not know it yet, because it is cut off from them or has not been told, goes on answering.

pub(super) mod asking;
pub(super) mod choice;

use std::future::{Future, pending};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::timeout;

use self::choice::Choice;
use super::location::{Address, Location};
use crate::backend::StoreError;
use crate::backend::url::Host;
use crate::clock::Moment;

/// So long is a master believed to be still the one.
const TRUSTED: Duration = Duration::from_secs(1);
/// So long are the sentinels awaited where something depends on what they say.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(500);

/// The sentinels of a service.
pub(super) struct Sentinels {
    sentinels: Vec<Host>,
    service: String,
    master: Option<Master>,
    asking: Option<Asking>,
}

/// The server that they have named.
struct Master {
    address: Address,
    /// When they were asked.
    named: Moment,
    /// They name another one now.
    is_former: bool,
}

/// A question to them that is on its way.
struct Asking {
    began: Moment,
    answer: Pin<Box<dyn Future<Output = Result<Choice, StoreError>>>>,
}

impl Sentinels {
    /// Names them; contacts nobody.
    pub(super) fn new(sentinels: Vec<Host>, service: String) -> Sentinels {
        Sentinels { sentinels, service, master: None, asking: None }
    }

    /// Where they listen.
    pub(super) fn hosts(&self) -> &[Host] {
        &self.sentinels
    }

    /// What they call the master and its replicas.
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Asks them for the master.
    ///
    /// # Errors
    /// None of them can be asked, or the service is unknown to them.
    pub(super) async fn find(&mut self, location: &Location) -> Result<Address, StoreError> {
        let asking = self.ask(location);
        self.asking = None;
        let Choice { master, .. } = asking.answer.await?;
        self.master = Some(Master { address: master.clone(), named: asking.began, is_former: false });
        Ok(master)
    }

    fn ask(&self, location: &Location) -> Asking {
        let answer = asking::ask_all(location.clone(), self.sentinels.clone(), self.service.clone());
        Asking { began: Moment::now(), answer: Box::pin(answer) }
    }

    /// The master that was named last.
    pub(super) fn master(&self) -> Option<&Address> {
        self.master.as_ref().map(|master| &master.address)
    }

    fn is_trusted(&self) -> bool {
        self.master.as_ref().is_some_and(|master| !master.is_former && Moment::now() - master.named < TRUSTED)
    }

    /// Begins to ask them whether the master is still the one, unless that is known or being asked.
    pub(super) fn doubt(&mut self, location: &Location) {
        let is_asking = self.asking.as_ref().is_some_and(|asking| Moment::now() - asking.began < TRUSTED);
        if self.master.is_some() && !self.is_trusted() && !is_asking {
            self.asking = Some(self.ask(location));
        }
    }

    /// Resolves when they have answered what they are being asked; never if they are not.
    async fn hear(&mut self) {
        let Some(asking) = &mut self.asking else { return pending().await };
        let (answer, began) = (asking.answer.as_mut().await, asking.began);
        self.note(answer, began);
    }

    /// Takes notice of what they have answered already, without waiting.
    fn catch_up(&mut self) {
        let Some(asking) = &mut self.asking else { return };
        let began = asking.began;
        if let Poll::Ready(answer) = asking.answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            self.note(answer, began);
        }
    }

    fn note(&mut self, answer: Result<Choice, StoreError>, began: Moment) {
        self.asking = None;
        if let (Ok(choice), Some(master)) = (answer, &mut self.master) {
            match choice.master == master.address {
                true => master.named = began,
                // What only some of them say is enough to doubt, and not to leave one that answers.
                false => master.is_former |= choice.is_agreed,
            }
        }
    }

    /// Whether they are known to name another master than before.
    pub(super) fn name_another(&mut self) -> bool {
        self.catch_up();
        self.master.as_ref().is_some_and(|master| master.is_former)
    }

    /// Resolves when they are known to name another master than before.
    pub(super) async fn another_named(&mut self) {
        while !self.name_another() {
            self.hear().await;
        }
    }

    /// Waits for what they say of the master, not for long, and tells whether they name it still.
    pub(super) async fn still_name_it(&mut self, location: &Location) -> bool {
        self.doubt(location);
        if self.asking.is_some() {
            let _ = timeout(CONFIRMED_WITHIN, self.hear()).await;
        }
        self.is_trusted()
    }
}
