//! What evidence does to a notification: one pure function from a state and a proof to what follows.
//!
//! Evidence never overwrites: where it disagrees with the record it raises a flag for a person.

use serde::{Deserialize, Serialize};

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

/// What is on record about the attempt that a piece of evidence speaks of, and about its notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The notification's state.
    pub state: State,
    /// Whether this attempt is the one recorded as accepted.
    pub this_was_sent: bool,
    /// Whether this attempt is the running one: claimed or transmitting.
    pub this_is_running: bool,
    /// Whether all attempts that may have been accepted are one acceptance: there is no other than this, or the provider
    /// takes them for the same message.
    pub one_acceptance: bool,
    /// Whether any attempt is still in doubt once this evidence counts.
    pub doubt_left: bool,
    /// Whether the evidence says that the refusal was for good.
    pub refused: bool,
}

/// What follows from a piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consequence {
    /// The state to go to, if it changes.
    pub next: Option<State>,
    /// The recipient may get it twice.
    pub duplicate_possible: bool,
    /// Evidence and record disagree: a person has to look.
    pub contradiction: bool,
}

/// Decides what follows.
#[must_use]
pub fn judge(proof: Proof, known: Known) -> Consequence {
    let to = |state| Consequence { next: Some(state), ..Consequence::default() };
    let twice = Consequence { duplicate_possible: true, ..Consequence::default() };
    let disputed = Consequence { contradiction: true, ..Consequence::default() };
    let nothing = Consequence::default();
    let same = known.this_was_sent || known.one_acceptance;
    match (proof, known.state) {
        (Proof::Inconclusive, _) => nothing,

        (
            Proof::Accepted | Proof::Delivered,
            State::Pending | State::Claimed | State::Uncertain | State::Unresolved,
        ) => to(State::Sent),
        // The running attempt's own answer is its worker's to settle; an earlier one's means that two are out, unless the
        // provider takes them for one.
        (Proof::Accepted | Proof::Delivered | Proof::Bounced, State::Transmitting)
            if known.this_is_running || known.one_acceptance =>
        {
            nothing
        }
        (Proof::Accepted | Proof::Delivered | Proof::Bounced, State::Transmitting) => twice,
        (Proof::Accepted | Proof::Delivered, State::Sent | State::Bounced) if same => nothing,
        (Proof::Accepted | Proof::Delivered, State::Sent | State::Bounced) => twice,
        (Proof::Accepted | Proof::Delivered | Proof::Bounced, State::Failed | State::Cancelled) => disputed,

        (Proof::Bounced, State::Pending | State::Claimed | State::Uncertain | State::Unresolved) => to(State::Bounced),
        (Proof::Bounced, State::Sent) if same => to(State::Bounced),
        (Proof::Bounced, State::Sent) => twice,
        (Proof::Bounced, State::Bounced) => nothing,

        (Proof::NotAccepted, State::Uncertain | State::Unresolved) if known.doubt_left => nothing,
        (Proof::NotAccepted, State::Uncertain | State::Unresolved) if known.refused => to(State::Failed),
        (Proof::NotAccepted, State::Uncertain | State::Unresolved) => to(State::Pending),
        (Proof::NotAccepted, State::Sent | State::Bounced) if known.this_was_sent => disputed,
        (
            Proof::NotAccepted,
            State::Sent
            | State::Bounced
            | State::Pending
            | State::Claimed
            | State::Transmitting
            | State::Failed
            | State::Cancelled,
        ) => nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_known() -> impl Iterator<Item = Known> {
        State::ALL.into_iter().flat_map(|state| {
            (0..32u8).map(move |bits| Known {
                state,
                this_was_sent: bits & 1 != 0,
                this_is_running: bits & 2 != 0,
                doubt_left: bits & 4 != 0,
                refused: bits & 8 != 0,
                one_acceptance: bits & 16 != 0,
            })
        })
    }

    #[test]
    fn evidence_makes_only_legal_transitions() {
        for known in every_known() {
            for proof in Proof::ALL {
                if let Some(next) = judge(proof, known).next {
                    assert!(known.state.may_become(next), "{proof:?} moved {known:?} to {next}");
                }
            }
        }
    }

    #[test]
    fn evidence_never_moves_a_notification_that_is_being_transmitted() {
        for known in every_known().filter(|known| known.state == State::Transmitting) {
            for proof in Proof::ALL {
                assert_eq!(judge(proof, known).next, None, "{proof:?} {known:?}");
            }
        }
    }

    #[test]
    fn a_proof_of_acceptance_is_never_followed_by_a_resend() {
        for known in every_known() {
            for proof in [Proof::Accepted, Proof::Delivered, Proof::Bounced] {
                assert_ne!(judge(proof, known).next, Some(State::Pending), "{proof:?} {known:?}");
            }
        }
    }

    #[test]
    fn attempts_that_are_one_acceptance_announce_no_duplicate_and_others_do() {
        for known in every_known().filter(|known| !known.this_was_sent && !known.this_is_running) {
            for state in [State::Transmitting, State::Sent] {
                let judged = judge(Proof::Accepted, Known { state, ..known });
                assert_eq!(judged.duplicate_possible, !known.one_acceptance, "{known:?}");
            }
        }
    }

    #[test]
    fn not_accepted_settles_nothing_while_another_attempt_is_in_doubt() {
        for known in every_known().filter(|known| known.doubt_left) {
            assert_eq!(judge(Proof::NotAccepted, known).next, None, "{known:?}");
        }
    }
}
