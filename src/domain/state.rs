//! The state machine of a notification: its states and, once, the table of its legal transitions.
//!
//! The database enforces the same table (`migrations/`, trigger `legal_transition`); a test compares the two pair by pair.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The one state that a notification is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waiting to be claimed, now or when it is due.
    Pending,
    /// Leased by a worker; nothing that could be accepted has left.
    Claimed,
    /// *Begun*: the body may be leaving.
    Transmitting,
    /// A provider took responsibility.
    Sent,
    /// Evidence says that it came back.
    Bounced,
    /// May have been accepted; inside its recovery window.
    Uncertain,
    /// May have been accepted; the window is over and a person decides.
    Unresolved,
    /// Known not to have been accepted, and given up.
    Failed,
    /// Withdrawn.
    Cancelled,
}

/// Every legal transition, with its cause.
pub const TRANSITIONS: &[(State, State, &str)] = {
    use State::{Bounced, Cancelled, Claimed, Failed, Pending, Sent, Transmitting, Uncertain, Unresolved};
    &[
        (Pending, Claimed, "claim"),
        (Pending, Failed, "its deadline passed before it could be sent"),
        (Pending, Uncertain, "it was to be resent and the time in which that is safe ran out"),
        (Pending, Sent, "evidence: an earlier attempt was accepted"),
        (Pending, Bounced, "evidence: an earlier attempt bounced"),
        (Pending, Cancelled, "cancelled"),
        (Claimed, Transmitting, "begin"),
        (Claimed, Pending, "not accepted before begin, given back, or lease lost before begin"),
        (Claimed, Failed, "refused, exhausted, expired or invalid before begin"),
        (Claimed, Uncertain, "this resend came to nothing and an earlier attempt is still in doubt"),
        (Claimed, Sent, "evidence: an earlier attempt was accepted"),
        (Claimed, Bounced, "evidence: an earlier attempt bounced"),
        (Transmitting, Sent, "accepted; or evidence meanwhile: this or an earlier attempt was accepted"),
        (Transmitting, Pending, "known not accepted, to be retried"),
        (Transmitting, Failed, "known not accepted, given up"),
        (Transmitting, Uncertain, "no answer, or lease lost after begin"),
        (Uncertain, Sent, "evidence: accepted"),
        (Uncertain, Bounced, "evidence: bounced"),
        (Uncertain, Pending, "evidence: not accepted; or a resend that is safe or was decided"),
        (Uncertain, Failed, "evidence: refused for good"),
        (Uncertain, Unresolved, "recovery window over"),
        (Uncertain, Cancelled, "cancelled"),
        (Unresolved, Sent, "evidence or operator: accepted"),
        (Unresolved, Bounced, "evidence: bounced"),
        (Unresolved, Pending, "evidence or operator: not accepted, or a resend decided"),
        (Unresolved, Failed, "evidence or operator: not accepted, given up"),
        (Unresolved, Cancelled, "cancelled"),
        (Sent, Bounced, "evidence: bounced"),
        (Sent, Pending, "operator: a spelled-out duplicate"),
        (Bounced, Pending, "operator: a spelled-out duplicate"),
        (Failed, Pending, "operator: replay"),
        (Failed, Sent, "evidence: an attempt that was in doubt was accepted after all"),
        (Failed, Bounced, "evidence: an attempt that was in doubt was accepted after all, and bounced"),
        (Failed, Cancelled, "cancelled"),
    ]
};

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Claimed,
        Self::Transmitting,
        Self::Sent,
        Self::Bounced,
        Self::Uncertain,
        Self::Unresolved,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name that the database, logs and JSON use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Claimed => "claimed",
            Self::Transmitting => "transmitting",
            Self::Sent => "sent",
            Self::Bounced => "bounced",
            Self::Uncertain => "uncertain",
            Self::Unresolved => "unresolved",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether a notification may go from this state to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        TRANSITIONS.iter().any(|&(from, to, _)| from == self && to == next)
    }

    /// Whether a worker holds a lease on a notification in this state.
    #[must_use]
    pub const fn leased(self) -> bool {
        matches!(self, Self::Claimed | Self::Transmitting)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is not the name of a state.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not a state; the states are pending, claimed, transmitting, sent, bounced, uncertain, unresolved, failed, cancelled"
)]
pub struct UnknownState(String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| UnknownState(text.to_owned()))
    }
}
