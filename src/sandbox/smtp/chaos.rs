//! A ready-made script that draws faults of every kind: the weather of the demo.
//!
//! It owns only probabilities; the faults themselves are ordinary [`Action`]s.

use std::time::Duration;

use super::action::{Action, Stage};
use super::script::{Rule, Script};

/// How probable each kind of fault is, from 0 to 1, each time a connection comes to a stage where it can happen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// The greeting is a 554 (connect).
    pub greeting_refused: f64,
    /// A 4yz (MAIL, RCPT, DATA, end of data).
    pub temporary: f64,
    /// A 5yz (MAIL, RCPT, DATA, end of data).
    pub permanent: f64,
    /// A 421 and a close (EHLO, MAIL, RCPT, DATA, end of data).
    pub unavailable: f64,
    /// A reply that is no SMTP (MAIL, RCPT, DATA).
    pub garbage: f64,
    /// Cut while the body comes in, by FIN or RST in equal parts.
    pub cut_in_body: f64,
    /// Cut after the final dot without accepting, by FIN or RST in equal parts.
    pub cut_after_dot: f64,
    /// Accepted, then FIN in place of the answer.
    pub lost_by_close: f64,
    /// Accepted, then RST in place of the answer.
    pub lost_by_reset: f64,
    /// Accepted, then silence.
    pub lost_by_hang: f64,
    /// Accepted, and the answer comes only after [`Rates::late_by`].
    pub lost_by_delay: f64,
    /// Accepted, and the answer is no SMTP.
    pub lost_by_garbage: f64,
    /// How late a late answer is.
    pub late_by: Duration,
}

impl Rates {
    /// Every fault with the same probability; late answers come `late_by` later.
    #[must_use]
    pub fn every(rate: f64, late_by: Duration) -> Self {
        Self {
            greeting_refused: rate,
            temporary: rate,
            permanent: rate,
            unavailable: rate,
            garbage: rate,
            cut_in_body: rate,
            cut_after_dot: rate,
            lost_by_close: rate,
            lost_by_reset: rate,
            lost_by_hang: rate,
            lost_by_delay: rate,
            lost_by_garbage: rate,
            late_by,
        }
    }
}

/// Bytes of the body that come in before a cut in it: fewer than any message's headers have, so that it cuts every one.
const CUT_AFTER_BYTES: u64 = 64;

impl Script {
    /// Draws faults with the given probabilities; the same seed gives every connection the same draws.
    #[must_use]
    pub fn chaos(seed: u64, rates: Rates) -> Self {
        let mut rules = Vec::new();
        let mut stage = |stage: Stage, faults: &[(f64, &str, Action)]| {
            // Rules are asked in turn, so each one's chance is given that those before it did not fire.
            let mut remaining = 1.0_f64;
            for (rate, label, action) in faults {
                if *rate > 0.0 {
                    let share = if remaining > 0.0 { rate / remaining } else { 0.0 };
                    rules.push(Rule::at(stage, action.clone()).label(label).probability(share));
                    remaining -= rate;
                }
            }
        };
        let garbage = || Action::Reply(b"\xff\x00 what?\r\n".to_vec());
        let unavailable = || Action::reply_then_close("421 4.3.2 going down");
        stage(
            Stage::Connect,
            &[(rates.greeting_refused, "greeting refused", Action::reply_then_close("554 5.3.2 no service"))],
        );
        stage(Stage::Ehlo, &[(rates.unavailable, "421", unavailable())]);
        for (at, temporary, permanent) in [
            (Stage::Mail, "451 4.3.0 try later", "550 5.7.1 sender refused"),
            (Stage::Rcpt, "450 4.2.1 mailbox busy", "550 5.1.1 no such mailbox"),
            (Stage::Data, "451 4.3.0 try later", "554 5.3.0 no"),
        ] {
            stage(
                at,
                &[
                    (rates.temporary, "4yz", Action::reply(temporary)),
                    (rates.permanent, "5yz", Action::reply(permanent)),
                    (rates.unavailable, "421", unavailable()),
                    (rates.garbage, "garbage", garbage()),
                ],
            );
        }
        stage(
            Stage::Body,
            &[
                (rates.cut_in_body / 2.0, "cut in the body", Action::Close.after_bytes(CUT_AFTER_BYTES)),
                (rates.cut_in_body / 2.0, "cut in the body", Action::Reset.after_bytes(CUT_AFTER_BYTES)),
            ],
        );
        stage(
            Stage::EndOfData,
            &[
                (rates.lost_by_close, "answer lost: close", Action::Close.after_accepting()),
                (rates.lost_by_reset, "answer lost: reset", Action::Reset.after_accepting()),
                (rates.lost_by_hang, "answer lost: hang", Action::Hang.after_accepting()),
                (rates.lost_by_delay, "answer late", Action::Proceed.after(rates.late_by).after_accepting()),
                (rates.lost_by_garbage, "answer lost: garbage", garbage().after_accepting()),
                (rates.cut_after_dot / 2.0, "cut after the dot", Action::Close),
                (rates.cut_after_dot / 2.0, "cut after the dot", Action::Reset),
                (rates.temporary, "4yz", Action::reply("451 4.3.0 try later")),
                (rates.permanent, "5yz", Action::reply("554 5.6.0 content refused")),
                (rates.unavailable, "421", unavailable()),
            ],
        );
        Self::new(rules).seeded(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::{Moment, ScriptHandle};
    use super::*;

    fn moment(stage: Stage) -> Moment<'static> {
        Moment { stage, connection: 1, transaction: 1, sender: "", recipients: &[], notification: None, message: None }
    }

    #[test]
    fn every_kind_of_fault_is_drawn_about_as_often_as_told() {
        let handle = ScriptHandle::new(Script::chaos(1, Rates::every(0.05, Duration::from_secs(1))));
        let mut draws = handle.draws(1);
        for _ in 0..10_000 {
            handle.choose(&moment(Stage::EndOfData), &mut draws);
        }
        let fired = handle.fired();
        for label in [
            "answer lost: close",
            "answer lost: reset",
            "answer lost: hang",
            "answer late",
            "answer lost: garbage",
            "cut after the dot",
            "4yz",
            "5yz",
            "421",
        ] {
            let count = fired.get(label).copied().unwrap_or_default();
            assert!((400..=600).contains(&count), "{label}: {count} of 10000, expected about 500");
        }
    }

    #[test]
    fn rates_of_nought_behave() {
        let handle = ScriptHandle::new(Script::chaos(1, Rates::default()));
        let mut draws = handle.draws(1);
        for stage in Stage::ALL {
            assert_eq!(handle.choose(&moment(stage), &mut draws), Action::Proceed);
        }
    }
}
