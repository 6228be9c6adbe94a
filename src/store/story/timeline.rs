//! A story as a list of what happened, by time: for the terminal and for the console.

use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use super::{Attempt, Decision, Evidence, Notification, Operation, ReplayItem, Story};

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It was stored.
    Stored,
    /// Something about an attempt.
    Attempt,
    /// Evidence came.
    Evidence,
    /// A person decided.
    Decision,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Attempt => "attempt",
            Self::Evidence => "evidence",
            Self::Decision => "decision",
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub struct Event {
    /// When, by the database's clock.
    pub at: OffsetDateTime,
    /// What kind.
    pub kind: Kind,
    /// In words, without control characters.
    pub words: String,
}

impl Story {
    /// All that happened, from the operation to the last decision.
    #[must_use]
    pub fn timeline(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut say = |at, kind, words: String| {
            // What a server or a person wrote cannot steer a terminal.
            let words = words.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            events.push(Event { at, kind, words });
        };
        if let Some(operation) = &self.operation {
            let Operation { message_id, operation: name, request_key, created_at, receipt_status, .. } = operation;
            let receipt = receipt_status
                .map_or("retention has removed its receipt".to_owned(), |status| format!("receipt {status}"));
            say(*created_at, Kind::Stored, format!("operation {name} {request_key}: {receipt}, message {message_id}"));
        }
        say(self.notification.created_at, Kind::Stored, "stored".to_owned());
        for attempt in &self.attempts {
            of_attempt(attempt, &mut say);
        }
        for evidence in &self.evidence {
            let Evidence { attempt_number, kind, proves, source, reference, recorded_by, .. } = evidence;
            let words = format!(
                "evidence about attempt {attempt_number}: {proves} ({kind} from {source}, {reference}, recorded by {recorded_by})"
            );
            say(evidence.received_at, Kind::Evidence, words);
        }
        for decision in &self.decisions {
            let state = |snapshot: &Option<serde_json::Value>| {
                let state = snapshot.as_ref().and_then(|snapshot| snapshot["state"].as_str());
                state.unwrap_or_default().to_owned()
            };
            let Decision { decided_by, action, reason, before, after, .. } = decision;
            let words = format!("{decided_by} decided: {action}, {} to {} ({reason})", state(before), state(after));
            say(decision.decided_at, Kind::Decision, words);
        }
        for item in &self.replays {
            let ReplayItem { replay_id, planned_by, reason, class, outcome, .. } = item;
            say(
                item.planned_at,
                Kind::Decision,
                format!("planned in replay {replay_id} by {planned_by} as {class} ({reason})"),
            );
            if let (Some(done), Some(outcome)) = (item.done_at, outcome) {
                say(done, Kind::Decision, format!("{} by replay {replay_id}", outcome.replace('_', " ")));
            }
        }
        // Stable: what happened at one time stays in the order in which it must have.
        events.sort_by_key(|event| event.at);
        events
    }
}

impl Notification {
    /// What happens to it by itself from here on.
    #[must_use]
    pub fn what_next(&self) -> String {
        let n = self;
        let until = |time: Option<OffsetDateTime>| time.map(at).unwrap_or_default();
        match n.state.as_str() {
            "pending" if n.doubt_since.is_some() => {
                format!(
                    "to be resent in the dedup scope {} until {}",
                    n.doubt_scope.as_deref().unwrap_or_default(),
                    until(n.resend_until)
                )
            }
            "pending" => format!("to be sent, due {}", until(n.due_at)),
            "claimed" | "transmitting" => {
                format!(
                    "a worker ({}) is at it; its lease runs until {}",
                    n.worker.as_deref().unwrap_or_default(),
                    until(n.lease_until)
                )
            }
            "uncertain" => match n.resend_at {
                Some(resend) => {
                    format!("to be resent at {} where that is still safe; evidence settles it before", at(resend))
                }
                None => format!(
                    "waits for evidence until {}, then for a person; it is not resent by itself",
                    until(n.doubt_until)
                ),
            },
            "unresolved" => "waits for a person: it may have been accepted".to_owned(),
            "failed" => "nothing: known not to have been accepted, and given up".to_owned(),
            "sent" => "nothing: the provider took responsibility".to_owned(),
            "bounced" => "nothing: it was taken and came back".to_owned(),
            _ => "nothing".to_owned(),
        }
    }
}

fn at(time: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    time.to_offset(UtcOffset::UTC).format(form).unwrap_or_default()
}

fn of_attempt(attempt: &Attempt, say: &mut impl FnMut(OffsetDateTime, Kind, String)) {
    let Attempt { number, provider, worker, fence, .. } = attempt;
    let replay = attempt.replay_id.map(|replay| format!(", for replay {replay}")).unwrap_or_default();
    say(
        attempt.claimed_at,
        Kind::Attempt,
        format!("attempt {number}: claimed by {worker} for {provider}, fence {fence}{replay}"),
    );
    if let Some(begun) = attempt.begun_at {
        say(begun, Kind::Attempt, format!("attempt {number}: begun, from here on the body may have left"));
    }
    let (Some(ended), Some(outcome), Some(phase)) = (attempt.ended_at, &attempt.outcome, &attempt.phase) else {
        return;
    };
    let reply =
        attempt.reply_code.map(|code| format!(": {code} {}", attempt.reply_text.as_deref().unwrap_or_default()));
    let error = attempt.error.as_ref().map(|error| format!(": {error}"));
    let counted = if attempt.counted { "" } else { " (no try used up)" };
    let reply = reply.unwrap_or_default();
    say(
        ended,
        Kind::Attempt,
        format!("attempt {number}: {outcome} at {phase}{}{}{counted}", reply.trim_end(), error.unwrap_or_default()),
    );
}
