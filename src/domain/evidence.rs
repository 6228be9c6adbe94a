//! What evidence does to a notification: one pure function from all that is known to what follows.
//!
//! Evidence never overwrites: where it disagrees with the record it raises a flag for a person.

use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::state::State;

/// What a piece of evidence proves about one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The provider took responsibility for it.
    Accepted,
    /// The provider did not take it, and never will by itself.
    NotAccepted,
    /// It was taken and came back.
    Bounced,
    /// It was taken and reached the recipient's mailbox.
    Delivered,
    /// Nothing.
    Inconclusive,
}

impl Proof {
    /// Every proof.
    pub const ALL: [Self; 5] = [Self::Accepted, Self::NotAccepted, Self::Bounced, Self::Delivered, Self::Inconclusive];

    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::NotAccepted => "not_accepted",
            Self::Bounced => "bounced",
            Self::Delivered => "delivered",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Where evidence comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A worker's own result, after its lease was lost.
    LateResult,
    /// An event that a provider sent.
    ProviderEvent,
    /// A line of a mail server's log.
    MailLog,
    /// A delivery status notification (RFC 3464).
    Bounce,
    /// What a person said.
    Statement,
}

impl Kind {
    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LateResult => "late_result",
            Self::ProviderEvent => "provider_event",
            Self::MailLog => "mail_log",
            Self::Bounce => "bounce",
            Self::Statement => "statement",
        }
    }
}

/// What all evidence about one attempt proves, however often and in whatever order it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Proofs {
    /// Accepted.
    pub accepted: bool,
    /// Delivered.
    pub delivered: bool,
    /// Bounced.
    pub bounced: bool,
    /// Not accepted.
    pub not_accepted: bool,
    /// Not accepted, and trying again cannot change it.
    pub refused: bool,
}

impl Proofs {
    /// Adds one piece of evidence.
    pub fn add(&mut self, proof: Proof, for_good: bool) {
        match proof {
            Proof::Accepted => self.accepted = true,
            Proof::Delivered => self.delivered = true,
            Proof::Bounced => self.bounced = true,
            Proof::NotAccepted => {
                self.not_accepted = true;
                self.refused |= for_good;
            }
            Proof::Inconclusive => {}
        }
    }

    fn of_acceptance(self) -> bool {
        self.accepted || self.delivered || self.bounced
    }
}

/// One attempt as it is on record, with what evidence says about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// How it ended by itself; `None` while it runs.
    pub outcome: Option<Outcome>,
    /// When it began, on the database's clock in seconds; `None` if it did not.
    pub begun_at: Option<f64>,
    /// With whom it is deduplicated.
    pub dedup_scope: String,
    /// For how long its provider deduplicates, and how long after its begin a resend may begin, in seconds; the shorter one.
    pub dedup_seconds: Option<f64>,
    /// Whether a person has started the notification anew since: what refused this attempt says nothing about the next.
    pub superseded: bool,
    /// Whether a person has since decided to send again what was known to be accepted: that it was says nothing new.
    pub sent_again: bool,
    /// What evidence says.
    pub proofs: Proofs,
}

impl Attempt {
    /// Whether it was accepted, by its own outcome or by evidence.
    fn accepted(&self) -> bool {
        self.outcome == Some(Outcome::Sent) || self.proofs.of_acceptance()
    }

    /// Whether nobody knows.
    fn in_doubt(&self) -> bool {
        self.outcome == Some(Outcome::Uncertain) && !self.proofs.of_acceptance() && !self.proofs.not_accepted
    }

    /// Whether what is said about it disagrees, with its own outcome or within itself.
    fn disputed(&self) -> bool {
        let refused = match self.outcome {
            Some(Outcome::NotSent | Outcome::Deferred | Outcome::Refused) => true,
            Some(Outcome::Sent | Outcome::Uncertain) | None => false,
        };
        (self.accepted() && (self.proofs.not_accepted || refused)) || (self.proofs.delivered && self.proofs.bounced)
    }

    /// Whether the provider takes the two for one message.
    fn same_message(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.begun_at, other.begun_at) else { return false };
        let (Some(first), Some(second)) = (self.dedup_seconds, other.dedup_seconds) else { return false };
        self.dedup_scope == other.dedup_scope && (one - two).abs() <= first.min(second)
    }
}

/// All that is on record about a notification.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Its state.
    pub state: State,
    /// Every attempt; the last one is the running one where the state is a leased one.
    pub attempts: Vec<Attempt>,
}

/// What follows from all that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consequence {
    /// The state to go to, if it changes.
    pub next: Option<State>,
    /// The recipient may get it twice.
    pub duplicate_possible: bool,
    /// Evidence and record disagree: a person has to look.
    pub contradiction: bool,
    /// Whether anything is left to be settled.
    pub doubt_left: bool,
}

/// Decides what follows from the set of all evidence: the order in which it came and how often make no difference.
///
/// Proof of acceptance outweighs proof of the contrary, since to send again on a wrong guess cannot be undone, and the
/// disagreement is flagged. Nothing moves a notification that is being transmitted: its worker settles it.
#[must_use]
pub fn weigh(known: &Known) -> Consequence {
    let attempts = &known.attempts;
    let news = || attempts.iter().filter(|attempt| !attempt.sent_again);
    let accepted: Vec<&Attempt> = news().filter(|attempt| attempt.accepted()).collect();
    let running = attempts.last().filter(|_| known.state == State::Transmitting);
    // What is proved beside a running attempt stays noted as a doubt, which its worker settles with the proof.
    let doubt_left = attempts.iter().any(Attempt::in_doubt) || (running.is_some() && !accepted.is_empty());
    let bounced = news().any(|attempt| attempt.proofs.bounced);
    let was_in_doubt = attempts.iter().any(|attempt| attempt.outcome == Some(Outcome::Uncertain));
    let refused = attempts
        .iter()
        .any(|attempt| attempt.outcome == Some(Outcome::Uncertain) && attempt.proofs.refused && !attempt.superseded);
    // What failed without a doubt stays failed, and proof against that is a contradiction and nothing more.
    let admissible = was_in_doubt && news().any(|attempt| attempt.proofs.of_acceptance());
    let end = if bounced { State::Bounced } else { State::Sent };
    let next = match known.state {
        State::Transmitting | State::Cancelled | State::Bounced => None,
        State::Sent => bounced.then_some(State::Bounced),
        State::Failed => admissible.then_some(end),
        State::Pending | State::Claimed | State::Uncertain | State::Unresolved if !accepted.is_empty() => Some(end),
        State::Claimed => None,
        State::Pending => (refused && !doubt_left).then_some(State::Failed),
        State::Uncertain | State::Unresolved if doubt_left => None,
        State::Uncertain | State::Unresolved if refused => Some(State::Failed),
        State::Uncertain | State::Unresolved => Some(State::Pending),
    };
    let twice = |one: &Attempt, other: &Attempt| !std::ptr::eq(one, other) && !one.same_message(other);
    let duplicate_possible = accepted.iter().any(|one| accepted.iter().chain(&running).any(|other| twice(one, other)));
    let contradiction = attempts.iter().any(Attempt::disputed)
        || (matches!(known.state, State::Failed | State::Cancelled)
            && next.is_none()
            && attempts.iter().any(|a| a.proofs.of_acceptance()));
    Consequence { next, duplicate_possible, contradiction, doubt_left }
}

#[cfg(test)]
mod tests;
